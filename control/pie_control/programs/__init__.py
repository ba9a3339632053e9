"""What instances run: uploaded programs, their compiled components, and warm instances."""
