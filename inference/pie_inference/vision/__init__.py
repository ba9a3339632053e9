"""Images: from the bytes of a file to what a language model reads in the place of tokens."""
