"""Real engines behind the engine interface."""
