"""Replay of a trace against one or more engines: traces, sessions, arrival driver, virtual-time loop, report."""
