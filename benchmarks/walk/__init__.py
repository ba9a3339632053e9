"""Which functions and files one prompt and one steady token pass through, in all processes."""
