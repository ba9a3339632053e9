"""What a worker reaches on a GPU, without a server: phases of `pie-py bench gpu`, a process each."""
