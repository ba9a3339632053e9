"""Settings of operators and users: the server's configuration, endpoints, keys, rules for hosts."""
