"""Whole sessions of agents: over HTTP beside vLLM, and on a simulated GPU."""
