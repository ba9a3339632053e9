"""What becomes of pages while their program waits outside: preserve, discard, or swap (InferCept).

`policies/` decide, each in a short pure file; the mechanisms are `evictor.py` (pages of instances
that wait, moved by the server when pages are scarce) and `advice.py` (for programs that ask).
"""
