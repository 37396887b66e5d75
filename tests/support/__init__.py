"""Shared helpers of the tests of the engine."""
