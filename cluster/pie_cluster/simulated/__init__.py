"""What a policy of placements would do, simulated."""
