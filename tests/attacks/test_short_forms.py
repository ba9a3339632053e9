"""Short forms of `test_nightly.py`: what each looks for, but for times."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks.bystander import Bystander
from attacks.catalogue import ATTACKS, HTTP
from attacks.frames import Fuzzer
from attacks.place import MALLORY, VICTIM, place
from attacks.table import undergo
from support.servers import Server

from pie_py.testing.script import replaying

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("over_http", [False, True])
def test_attacks_of_every_cause_leave_a_bystander_the_text(over_http: bool) -> None:
    with place(http=over_http) as where, Bystander(where.url, where.keys[VICTIM]) as bystander:
        for attack in ATTACKS:
            if attack.short and (attack.cause == HTTP) is over_http:
                outcome = undergo(attack, where, bystander, 0.4)
                assert not outcome.problems, attack.name
                assert not outcome.gaps.wrong, attack.name


HOARD = """
import json
from inferlet import raw, session

async def main(args):
    queue = raw.create_queue(raw.available_models()[0])
    for _ in range(json.loads(raw.pool_stats(queue))["kv_pages"]):
        raw.alloc_kvpage(queue, 1)
    session.send("all of them")
    while True:
        raw.wait([])
"""
GENERATE = """
from inferlet import Context, Model, Sampler

async def main(args):
    context = Context(Model.load())
    context.fill("hello world")
    return await context.generate(Sampler.argmax(), max_tokens=4, stop=[]).collect_text()
"""


def test_one_who_holds_all_pages_and_never_waits_stops_nobody() -> None:
    models = [{"source": "pie-tiny", "kv_pages": 512}]
    with (
        place(models=models, interception={"wait_seconds": 3600.0}, limits={}) as where,
        where.client(MALLORY) as mallory,
        where.client(VICTIM) as victim,
    ):
        hoard, generate = (
            mallory.upload(HOARD.encode(), "hoard"),
            victim.upload(GENERATE.encode(), "g"),
        )
        assert mallory.launch(hoard, []).receive(timeout=60) == "all of them"
        texts = {victim.launch(generate, []).result(60) for _ in range(3)}
        assert len(texts) == 1


def test_frames_that_are_wrong_somewhere(short_folder: Path) -> None:
    with Server(short_folder, **replaying(short_folder), spare_instances=2) as server:
        found = Fuzzer(server, seed=7).run(4000)
    assert not found.wrong
    assert found.failures > 500, "most are understood far enough to be refused"
    assert found.answers > 1.5 * found.failures, "and many are right"
