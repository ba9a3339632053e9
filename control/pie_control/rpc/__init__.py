"""The server's door: sessions of clients over ZeroMQ. `docs/protocol.md` describes what crosses it."""
