"""Device programs as inferlets give them: each is read once, a stranger's in a confined process."""
