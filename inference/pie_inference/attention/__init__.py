"""Attention over the paged KV pool: what is attended to, and the backends that compute it."""
