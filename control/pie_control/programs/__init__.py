"""Programs: the uploaded ones, their compiled components, and the guests that they run in."""
