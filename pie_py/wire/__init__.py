"""Messages that cross process boundaries: their types and their bytes, and nothing else."""
