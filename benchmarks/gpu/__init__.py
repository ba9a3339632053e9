"""A worker on a GPU, without a server: phases of `gpu`, a process each."""
