"""A durable instance begins anew with its state, in every language."""

from __future__ import annotations

import json

import pytest
from conformance.conformance_server import PROGRAMS, Place


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
