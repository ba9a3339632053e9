"""Programs and instances over HTTP: what the client does."""
