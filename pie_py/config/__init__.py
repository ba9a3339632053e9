"""What operators and users set: the server's configuration, endpoints, keys, rules for hosts."""
