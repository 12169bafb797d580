"""Computes limits from latency and drops."""
