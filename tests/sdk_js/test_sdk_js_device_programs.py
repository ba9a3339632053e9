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
    "nan": r"x is float \[\]: something else was given",
    "field": r"there is no field 'temprature'",
    "range": r"temperature is -1; it is a number, 0 to 10000",
    "kept": r"f returned <bool \[heads\]>: what is kept is bool \[tokens\]",
    "alone": r"reads the logits of 1 contexts beside this one",
    "accept": r"accept none, but `await step.execute\(\)`",
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


def test_state_goes_on(found: dict[str, Any]) -> None:
    assert (found["tokens"], found["more"]) == ([10, 11, 12, 13, 14], [15, 16, 17])


def test_whole_numbers_of_state_are_exact(found: dict[str, Any]) -> None:
    x, y, table, low = found["states"][0]
    assert (int(x), table, low) == (2**53 + 5, f"{-(2**63) + 7} 5", "-Infinity")
    assert float(y) == pytest.approx(2 * 2**53, rel=1e-6)
    x, _, table, _ = found["states"][1]
    assert (int(x), table) == (2**53 + 7, f"{-(2**63) + 6} 4")


def test_a_watermark_is_recognized(found: dict[str, Any]) -> None:
    right, wrong = (watermark.synthid_score(found["watermarked"], key=key) for key in (42, 43))
    assert right > 2.5 > wrong


def test_speculation_changes_no_token(found: dict[str, Any]) -> None:
    plain, guessed, improved = found["guessed"]
    assert plain == guessed == improved
    number, alone = found["speculation"]
    assert "speculate is 17: 1 to 16 tokens can be guessed" in number
    assert "a drafter goes with `speculate`" in alone
    given, none = found["like"]
    assert given == none == plain


def test_a_program_is_given_other_values(found: dict[str, Any]) -> None:
    put = found["put"]
    assert put["tokens"] == [10, 11, 12, 53, 54, 55, 20, 21, 22]
    assert put["state"] == [20, 3]
    assert "token is int []: something else was given" in put["kind"]
    assert "PieError: invalid-argument" in put["name"]
    assert "no device program has chosen" in put["early"]


def test_a_context_beside_is_read(found: dict[str, Any]) -> None:
    own, other, whole, none = found["beside"]
    assert own != other
    assert (whole, none) == (own, other)


def test_layers_read_a_part(found: dict[str, Any]) -> None:
    texts = found["attended"]
    assert texts["whole"] == texts["all pages"] == texts["all of a text"]
    assert texts["the same in the layers"] == texts["whole"] != texts["nothing in a layer"]
    for name in ("sinks", "quest", "tova", "h2o", "snapkv"):
        assert len(texts[name]) == len(texts["whole"])
        assert texts[name][0] == texts["whole"][0]
    assert len({tuple(tokens) for tokens in texts.values()}) > 3


def test_programs_in_the_layers(found: dict[str, Any]) -> None:
    told = found["inLayers"]
    assert told["plain"] == told["probed"] == told["chosen"]
    assert len(told["second"]) == len(told["dola"]) == len(told["plain"])
    assert told["plain"] not in (told["second"], told["dola"])
    assert abs(float(told["sums"])) > 0.1
    assert "no program is called 'nothing'" in told["missing"]


def test_ways_to_read_what_layers_read_in_parts(found: dict[str, Any]) -> None:
    for ways in found["attendedWays"]:
        assert len(ways["run"]) == 10
        for way in ("steps", "grammar", "logprobs", "looks"):
            assert ways[way] == ways["run"], way
