"""Programs that a node takes from the gateway."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from pie_cluster.node.extension import ProgramFetcher
from pie_control.errors import ApiError
from pie_control.programs.store import ProgramStore


async def test_a_program_is_fetched_once_for_all_who_want_it_at_once(tmp_path: Path) -> None:
    """Also when the first of them fails: the next one fetches, and who comes then waits for it."""
    data, programs, asked = b"a program", ProgramStore(tmp_path, 1000, lambda: 0), Counter[str]()
    digest = hashlib.sha256(data).hexdigest()
    turn = [trio.Event(), trio.Event()]

    async def ask(method: str, **facts: Any) -> Any:
        asked[method] += 1
        if method == "program-bytes":
            return data
        number = asked[method] - 1
        await turn[number].wait()
        if number == 0:
            raise ApiError("busy", "the gateway is away")
        return {"size": len(data), "name": "it", "kind": "python"}

    gateway: Any = SimpleNamespace(ask=ask)
    fetcher = ProgramFetcher(gateway, programs)

    async def fails() -> None:
        with pytest.raises(ApiError, match="away"):
            await fetcher.fetch(digest, "ann")

    async with trio.open_nursery() as nursery:
        for fetch in (fails, partial(fetcher.fetch, digest, "ann")):
            nursery.start_soon(fetch)
            await trio.testing.wait_all_tasks_blocked()
        turn[0].set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(fetcher.fetch, digest, "ann")
        await trio.testing.wait_all_tasks_blocked()
        turn[1].set()
    assert programs.has(digest)
    assert asked == {"program": 2, "program-bytes": 1}
