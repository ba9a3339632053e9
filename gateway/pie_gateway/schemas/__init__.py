"""Structures of requests and answers. No endpoint is here."""
