"""Programs of the library beside the same logic as a script over an OpenAI-style endpoint."""
