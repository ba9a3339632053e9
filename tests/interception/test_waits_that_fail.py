"""Waits of several contexts, one of which fails: the others come back."""

from __future__ import annotations

import json

from support.servers import Server

PROGRAM = b"""
from inferlet import Context, Model, PieError
from inferlet.interception import interception

async def main():
    model, told = Model.load(), []
    kept, other = [Context(model, prefix_cache=False).fill("word " * 40) for _ in range(2)]
    await kept.flush()
    await other.flush()
    gone = Context(model)
    gone.release()
    for contexts in ([kept, gone], [other, kept]):
        waiting = interception(contexts, "swap", expected_seconds=1000)
        try:
            async with waiting:
                other.release()
        except PieError as error:
            told.append(error.code)
        told += [waiting.choices, len(await kept.generate(max_tokens=2).collect_tokens())]
    return told
"""


def test_a_context_that_fails_leaves_no_other_one_away() -> None:
    """It fails as the wait begins, and as it ends."""
    with Server() as server, server.client() as client:
        told = json.loads(client.launch(client.upload(PROGRAM, "waits")).result())
    began = ["invalid-handle", ["swap", "preserve"], 2]
    assert told == [*began, "invalid-handle", ["swap", "swap"], 2]
