"""Durable instances, which go on after a crash of the server or of its worker."""
