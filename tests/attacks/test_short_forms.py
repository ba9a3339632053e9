"""Short forms of `test_nightly.py`: what each looks for, but for times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from attacks.bystander import Bystander
from attacks.catalogue import ATTACKS, HTTP, instances
from attacks.frames import Fuzzer
from attacks.place import VICTIM, place
from attacks.table import undergo
from support.servers import Server

from pie_py.testing.script import replaying

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Whose launches alone would take most of the time.
FEWER = {"300 yield before their slice ends": instances(60, "yield_early")}


@pytest.mark.parametrize("over_http", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_attacks_of_every_cause_leave_a_bystander_the_text(over_http: bool) -> None:
    with place(http=over_http) as where, Bystander(where.url, where.keys[VICTIM]) as bystander:
        for attack in ATTACKS:
            if attack.short and (attack.cause == HTTP) is over_http:
                brief = replace(attack, act=FEWER.get(attack.name, attack.act))
                outcome = undergo(brief, where, bystander, 0.4)
                assert not outcome.problems, attack.name
                assert not outcome.gaps.wrong, attack.name


def test_frames_that_are_wrong_somewhere(short_folder: Path) -> None:
    with Server(short_folder, **replaying(short_folder), spare_instances=2) as server:
        found = Fuzzer(server, seed=7).run(4000)
    assert not found.wrong
    assert found.failures > 500, "most are understood far enough to be refused"
    assert found.answers > 1.5 * found.failures, "and many are right"
