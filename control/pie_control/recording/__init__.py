"""Records of programs' API calls, and their replay without a model."""
