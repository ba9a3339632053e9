"""What runs on a machine of a cluster: keepers, actors, and what operators ask for."""
