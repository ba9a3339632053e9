"""What a policy of placements would do, in simulated time."""
