"""Hypothesis strategies and state machines over any engine."""
