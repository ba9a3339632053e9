"""Messages between the members of a cluster."""
