"""Every case, through both SDKs, on a real server: the contract's semantics hold."""

from __future__ import annotations

import json

import pytest
from conformance.case_files import Case, load
from conformance.conformance_server import PROGRAMS, Place
from conformance.runner import Run

pytestmark = pytest.mark.slow  # all of them together
CASES = load()
POOLS = ("kv_pages", "host_pages", "embeds", "samplers")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(place: Place, language: str, case: Case) -> None:
    with place.server.client() as client:
        program = client.upload(PROGRAMS[language](), name=f"interpreter-{language}")
        Run(client, program, place.names, place.functions).run(case)
        assert client.instances() == []
        for name, stats in client.stats().items():
            for pool in POOLS:
                if pool in stats:
                    assert stats[f"{pool}_free"] == stats[pool], (name, pool)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("language", PROGRAMS)
def test_the_state_is_there_in_the_next_life(place: Place, language: str) -> None:
    with place.server.client() as client:
        program = client.upload(PROGRAMS[language](), name=f"interpreter-{language}")
        instance = client.launch(program, ["serve", "it"], durable=True)
        for state in ([], [0, 255], [7] * 1000):
            instance.send(json.dumps([["instance-id", []], ["last-checkpoint", []]]))
            name, last = json.loads(str(instance.receive()))
            assert (name, last) == ({"ok": instance.id}, {"ok": state})
            following = [0, 255] if not state else [7] * 1000
            instance.send(json.dumps([["checkpoint", [{"bytes": following}]]]))
        instance.send("")
        assert instance.result() == "done"
