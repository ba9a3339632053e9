"""PostgreSQL, which nodes share."""
