"""The small-step, deterministic engine model."""
