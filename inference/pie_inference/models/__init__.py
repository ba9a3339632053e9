"""Model families: a file each."""
