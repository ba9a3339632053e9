"""Every case, through both SDKs, on a real server: the contract's semantics hold."""

from __future__ import annotations

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
