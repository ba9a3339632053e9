"""Model families, and what they are made of."""
