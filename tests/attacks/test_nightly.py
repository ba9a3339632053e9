"""At length: every attack beside a user who generates text, and all that can be damaged.

`pytest -m nightly tests/attacks -k table -s` prints the figures that docs/safety.md sums up.
"""

from __future__ import annotations

import random
import threading
import time

import psutil
import pytest
from attacks.answers import Found, to_commands, to_sessions
from attacks.bystander import Bystander
from attacks.catalogue import ATTACKS, HTTP, acts
from attacks.checkpoints import wrong_checkpoints
from attacks.frames import Fuzzer, settled_mb
from attacks.place import EVE, MALLORY, VICTIM, Place, place
from attacks.table import all_attacks, clean_up, shown
from support.servers import Server

from pie_py.client.errors import ClientError

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(0)]

MOST_GROWN = 1.5  # of the control process's memory
ANSWER_MS = 2000.0  # the longest that a client beside an attacker may wait
POOLS = ("embeds", "samplers", "host_pages")
SOAK_SECONDS = 600.0


def test_table() -> None:
    """Its times are for people to judge: they are the machine's, and of what else it does."""
    outcomes = list(all_attacks(4.0))
    print("\n" + shown(outcomes))
    assert {one.word for one in outcomes} == {"contained"}


def test_frames() -> None:
    limits = {"detached_seconds": 1.0, "cpu_seconds": 5.0}
    models = [{"source": "pie-tiny"}]
    with (
        # Spare instances would fill the memory meanwhile.
        Server(models=models, limits=limits, spare_instances=0) as server
    ):
        found = Fuzzer(server, seed=1).run(100_000)
    assert not found.wrong
    assert found.after_mb <= MOST_GROWN * found.before_mb
    assert found.slowest_ms <= ANSWER_MS
    assert found.files <= 0


def test_answers() -> None:
    found = Found()
    to_sessions(100_000, seed=1, found=found)
    to_commands(200, seed=1, found=found)
    assert not found.wrong


def test_checkpoints() -> None:
    assert wrong_checkpoints(1000) == ""


def test_soak() -> None:
    """Two users attack at random for some minutes, beside one who generates text; then a rest."""
    # Spare instances would come after the first look, and be taken for what is left behind.
    with place(spare_instances=0) as where, Bystander(where.url, where.keys[VICTIM]) as bystander:
        control = psutil.Process(where.server.process.pid)
        files, before = control.num_fds(), control.memory_info().rss / 1e6
        start = time.monotonic()
        attackers = [
            threading.Thread(target=_attack, args=(where, user, seed, start + SOAK_SECONDS))
            for seed, user in enumerate((MALLORY, EVE))
        ]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
        assert not where.problems()
        assert not bystander.since(start, time.monotonic()).wrong
        assert settled_mb(control, before) <= MOST_GROWN * before
        assert control.num_fds() <= files
        with where.client(MALLORY) as client:
            assert not client.instances()
            for pools in client.stats().values():
                for pool in POOLS:  # the bystander has some
                    assert pools[f"{pool}_free"] >= pools[pool] // 2, pool


def _attack(where: Place, user: str, seed: int, end: float) -> None:
    chance = random.Random(seed)
    inside = [attack for attack in ATTACKS if attack.cause != HTTP]
    while time.monotonic() < end:
        try:
            with where.client(user) as client:
                acts(chance.choice(inside), client, where, chance.uniform(1, 4))
            clean_up(where, user)
        except ClientError:
            pass  # the server is busy with the other one's
