"""Steps that are run before serving, to warm up and to measure: threads, costs."""
