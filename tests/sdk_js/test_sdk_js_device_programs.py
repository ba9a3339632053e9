"""Device programs of JavaScript: texts that the server reads, and what they choose."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferlet import watermark
from pie_py.client.sync import Client

pytestmark = pytest.mark.slow
GUEST = Path(__file__).parent / "guests/device_programs.ts"
MISTAKES = {
    "kinds": r"program:3:15: add of float \[vocabulary\] and int \[\]: cast one of them",
    "given": r"x is an empty list",
    "nan": r"x is float \[\]: .* was given",
    "field": r"there is no field 'temprature'",
    "range": r"temperature is -1; it is a number, 0 to 10000",
    "missing": r"no program is called 'nothing'",
}


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    """The guest's answer."""
    told = json.loads(client.launch(client.upload(GUEST)).result())
    assert isinstance(told, dict)
    return told


def test_mistakes_are_told_with_their_place(found: dict[str, Any]) -> None:
    assert found["mistakes"].keys() == MISTAKES.keys()
    for name, wanted in MISTAKES.items():
        assert re.search(wanted, found["mistakes"][name]), (name, found["mistakes"][name])


def test_the_same_seed_writes_the_same_text_however_it_is_read(found: dict[str, Any]) -> None:
    for text, tokens, steps in found["ways"]:
        assert len(tokens) == 8
        assert text == tokens == steps


def test_state_changes_and_whole_numbers_are_exact(found: dict[str, Any]) -> None:
    assert found["tokens"] == [10, 11, 12, 13, 14]
    assert found["exact"] == [10]


def test_a_watermark_is_recognized(found: dict[str, Any]) -> None:
    right, wrong = (watermark.synthid_score(found["watermarked"], key=key) for key in (42, 43))
    assert right > 2.5 > wrong


def test_speculation_changes_no_token(found: dict[str, Any]) -> None:
    plain, guessed = found["guessed"]
    assert plain == guessed
    assert "speculate is 17: 1 to 16 tokens can be guessed" in found["speculation"]
