"""Sessions of clients over ZeroMQ; `docs/protocol.md` describes the messages."""
