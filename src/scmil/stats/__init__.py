"""Metrics, intervals, tests and localisation: pure functions of arrays."""
