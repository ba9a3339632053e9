"""Guests of the Python runtime that are started before there is a program for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sdk_rig import BOS, Rig, continuation


@pytest.fixture(scope="module")
def spared(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Two programs find a guest that waits for them, others don't."""
    return Rig(tmp_path_factory.mktemp("spared"), spares=2)


GENERATE = """
from inferlet import *
async def main(args):
    return await Context(Model.load()).fill(args[0]).generate(max_tokens=20).collect_tokens()
"""


def test_all_generate_alike(spared: Rig, rig: Rig) -> None:
    texts = ["hello", "world", "again", "more"]
    outcomes = spared.run_all([(GENERATE, [text]) for text in texts])
    for text, outcome in zip(texts, outcomes, strict=True):
        assert json.loads(outcome.text) == continuation([BOS, *text.encode()], 20)
    assert [o.text for o in outcomes] == [rig.run(GENERATE, text).text for text in texts]


STATE = """
import asyncio, gc, json, linecache, random, sys, uuid
import inferlet
from inferlet import model
async def main(args):
    found = [
        args, sys.argv, __name__, __file__, sorted(model._loaded), sorted(vars(inferlet)),
        sorted(linecache.cache), sys.modules["__main__"].__file__, gc.isenabled(),
        asyncio.current_task().get_name().partition("-")[0], hasattr(json, "mark"),
    ]
    json.mark = True  # what the next one must not see
    return [found, [random.random(), str(uuid.uuid4())]]
"""


def test_a_program_cannot_tell_and_shares_nothing(spared: Rig, rig: Rig) -> None:
    first, second, third = (json.loads(o.text) for o in spared.run_all([(STATE, ["x", "y"])] * 3))
    usual = json.loads(rig.run(STATE, "x", "y").text)
    again = json.loads(spared.run(STATE, "x", "y").text)
    assert first[0] == second[0] == third[0] == usual[0] == again[0]
    assert usual[0][0] == ["x", "y"]
    drawn = [part for run in (first, second, third, usual, again) for part in run[1]]
    assert len(set(drawn)) == len(drawn)


def test_ways_to_end(spared: Rig) -> None:
    jobs = [
        ("def main(:", []),
        ("def main(args): raise ValueError(args[0])", ["wrong"]),
        ("x = 1", []),
        ("def main(): return 'fine'", []),
    ]
    texts = [outcome.text for outcome in spared.run_all(jobs)]
    assert "SyntaxError: invalid syntax" in texts[0]
    assert "ValueError: wrong" in texts[1]
    assert "has no function `main`" in texts[2]
    assert texts[3] == "fine"


def test_unused_ones_end_with_the_server(tmp_path: Path) -> None:
    rig = Rig(tmp_path, spares=3)
    assert rig.run("def main(): return 1").ok
    assert len(rig.warm) == 0
    assert not rig.engine.stores
    # As many as a server lets live at once, beside the warm instances that are made meanwhile.
    sleep = "import asyncio\nasync def main(): await asyncio.sleep(0.2)"
    assert all(outcome.ok for outcome in rig.run_all([(sleep, [])] * 100))
