"""Interception: pages are preserved, discarded or swapped while their program waits (InferCept).

`policy.py` has the policies, short pure functions; the mechanisms are `evictor.py` (pages of
instances that wait, moved by the server when pages are scarce) and `advice.py` (for programs that
ask).
"""
