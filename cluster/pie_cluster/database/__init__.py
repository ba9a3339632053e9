"""What nodes share in PostgreSQL."""
