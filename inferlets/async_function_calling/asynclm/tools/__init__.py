"""Tools: what a model may call, where it runs, and the executor that runs it."""
