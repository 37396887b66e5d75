"""Traces: reading them, and replaying them in virtual time."""
