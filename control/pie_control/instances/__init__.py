"""Running inferlets: their state, their turns, their futures, and the registry of all of them."""
