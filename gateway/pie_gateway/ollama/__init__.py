"""Ollama's API, for clients that speak no other: chats, generations, and what is served."""
