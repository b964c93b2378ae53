"""Reported bugs as case files, the case format and its runner."""
