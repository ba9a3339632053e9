"""Metrics for Prometheus, under vLLM's names with the prefix `pie_`."""
