"""HTTP requests of inferlets: the trait `http`, what it may reach, and one exchange."""
