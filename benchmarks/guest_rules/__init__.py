"""What it saves that a rule runs where the model does."""
