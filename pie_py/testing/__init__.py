"""Tools of authors' tests: a model that answers what a test says, and the plugin of pytest."""
