"""Device programs on a server; `inference/test_sampler_rules.py` has what rules mean."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server

from pie_py.client.errors import ClientError

pytestmark = pytest.mark.slow
PROMPT = random.Random(5).choices(range(3, 300), k=40)


def run(server: Server, guests: Path, mode: str) -> Any:
    with server.client() as client:
        program = client.upload(guests / "device_sampling.py")
        return json.loads(client.launch(program, [mode, json.dumps(PROMPT)]).result())


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
        "invalid-argument: state: token is int []: 0.5 was given",
        "invalid-argument: state: other is none of its names ['more', 'token']",
    ]
    assert len(found["digits"]) == 8
    assert found["digits"].isdigit()
    lines = (Path(__file__).parent / "guests" / "device_sampling.py").read_text().splitlines()
    for error, told, line in (
        (found["outside"], "chose token 100000000, which is not in", "step() + 100_000_000"),
        (found["too_wide"], "1000000 elements", "device.iota(1000).reshape(1000, 1)"),
    ):
        assert told in error
        place = re.search(r", made at device_sampling\.py:(\d+):\d+ by `.*`$", error)
        assert place is not None
        assert line in lines[int(place[1]) - 1]
    for told, wanted in zip(
        found["refused"],
        (
            "there is no program 'mirostats' in the library, and no sampler of yours is called so;"
            " did you mean 'mirostat'?",
            "device program: own.py:7:1: rule returned <float [vocabulary]>: a program returns a",
            "device program: own.py:8:10: a tensor has no `nothing`",
            "sampler parameters: temperature beside a `program`, which chooses by itself",
            'there is no program \'{"state"',
        ),
        strict=True,
    ):
        assert wanted in told


OWN = """
from inferlet import device, samplers

SHARE = 0.5


def half(logits):
    return samplers.top_p(logits, SHARE)


def my_rule(logits, state):
    return device.draw(half(logits) / state.heat)
"""
USES_OWN = """
from inferlet import Context, Model, PieError, device

async def main() -> list:
    model, found = Model.load(), []
    rule = device.program("def rule(logits, s): return draw(top_p(logits, 0.5) / s.heat)")
    for sampler in (device.named("mine"), rule, device.named("mines"), device.named("uses")):
        context = Context(model).append([5, 6, 7])
        try:
            generation = context.generate(sampler(heat=2.0, seed=1), max_tokens=9, stop=[])
            found.append(await generation.collect_tokens())
        except PieError as error:
            found.append(str(error))
    return found
"""


def test_a_sampler_of_a_user_s_own_has_a_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with server.client() as client:
        client.upload(tmp_path / "mine.py", sampler=True)
        client.upload(USES_OWN.encode(), "uses")
        mine, same, unknown, program = json.loads(client.launch("uses").result())
        assert mine == same
        assert "no sampler of yours is called so" in unknown
        assert "uses is a program and no sampler" in program
        with pytest.raises(
            ClientError, match="mine is a sampler, which inferlets choose tokens by"
        ):
            client.launch("mine").result()
        (tmp_path / "mine.py").write_text("def rule(logits):\n    return logits(")
        with pytest.raises(ClientError, match=r"mine.py:2:18: '\(' was never closed"):
            client.upload(tmp_path / "mine.py", sampler=True)
