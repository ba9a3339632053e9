"""What authors test with: a model that answers what a test says, and the plugin of pytest."""
