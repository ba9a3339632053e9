"""A real model on a laptop: beside llama.cpp and transformers, on one GGUF."""
