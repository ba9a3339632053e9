"""Made importable for its constants; Python itself finds the hook on the path."""
