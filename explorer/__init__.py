"""Exhaustive exploration of small transition systems."""
