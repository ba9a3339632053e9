"""Contexts of one program are batched together, as those of several programs are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import reference
from support.servers import Server

FORKS = 8
TOKENS = 16


@pytest.mark.slow
@pytest.mark.parametrize("how", ["generate", "distribution"])
def test_forks_of_one_program_share_their_steps(
    server: Server, guests: Path, checkpoint: Path, how: str
) -> None:
    text, firsts = list(range(3, 24)), list(range(30, 30 + FORKS))
    with server.client() as client:
        program = client.upload(guests / "forks.py")
        arguments = [how, json.dumps(text), json.dumps(firsts), str(TOKENS)]
        client.launch(program, arguments).result()  # all that comes first has happened
        before = client.stats()["test"]
        answer = json.loads(client.launch(program, arguments).result())
        after = client.stats()["test"]
    assert answer == [reference.greedy(checkpoint, [*text, first], TOKENS) for first in firsts]
    forwards = after["commands"]["forward"] - before["commands"]["forward"]
    batches = after["batches"]["forward"] - before["batches"]["forward"]
    assert forwards >= FORKS * TOKENS
    # One batch a step, were it not for the text itself, and for forks that a slow machine
    # interrupts between their starts. Forks that take turns would need one batch a forward.
    assert batches <= forwards / FORKS * 1.5
