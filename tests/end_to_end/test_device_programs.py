"""Device programs on a server: they choose what built-in samplers of the same meaning choose."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server

pytestmark = pytest.mark.slow
PROMPT = random.Random(5).choices(range(3, 300), k=40)


def run(server: Server, guests: Path, mode: str) -> Any:
    with server.client() as client:
        program = client.upload(guests / "device_sampling.py")
        return json.loads(client.launch(program, [mode, json.dumps(PROMPT)]).result())


def test_programs_choose_as_the_samplers_that_mean_the_same(server: Server, guests: Path) -> None:
    found = run(server, guests, "pairs")
    assert len(found) == 14
    assert [name for name, (built_in, program) in found.items() if built_in != program] == []
    texts = {tuple(built_in) for built_in, _ in found.values()}
    assert len(texts) > 8  # most of the rules made a difference


def test_programs_read_the_logits_of_contexts_beside(server: Server, guests: Path) -> None:
    found = run(server, guests, "beside")
    assert found.pop("missing").endswith("`device.beside`), and there are 0")
    own, other = found.pop("alone")
    assert own != other
    assert found == {"guidance": [own, other], "context_aware": [own, other]}


def test_state_steps_grammars_and_what_is_refused(server: Server, guests: Path) -> None:
    found = run(server, guests, "alone")
    assert found["counted"] == list(range(10, 34))
    assert [token for token, _, _ in found["read"]] == list(range(10, 16))
    assert all(logprob < 0 and count == 2 for _, logprob, count in found["read"])
    assert found["state"] == {"next": 6}
    assert (found["later"], found["forked"]) == ([15, 16, 17], [18, 19])
    tokens, errors = found["put"]
    assert tokens == [10, 11, 12, 53, 54, 55, 20, 21, 22]
    assert errors == [
        "invalid-argument: state: token is int []: something else was given",
        "invalid-argument: state: other is none of its names ['more', 'token']",
    ]
    assert len(found["digits"]) == 8
    assert found["digits"].isdigit()
    error, line = found["outside"]
    assert "the device program chose token 100000000, which is not in" in error
    assert error.endswith(f", made at {line}")
    assert found["too_wide"].endswith(f", made at {line.partition(':')[0]}:{found['wide_line']}")
    for told, wanted in zip(
        found["refused"],
        (
            "device program: no JSON",
            "device program: next: its names are ['next'], and [] were given",
            "device program: next is int []: something else was given",
            "device program: temperature: Extra inputs are not permitted",
            "device program: the token is float [vocabulary], not int []",
        ),
        strict=True,
    ):
        assert wanted in told
