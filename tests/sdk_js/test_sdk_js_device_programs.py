"""Device programs of JavaScript have the texts of Python's, and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.device_texts import ATTEND_TEXTS, TEXTS

from inferlet import watermark
from pie_py.client.sync import Client
from pie_py.device_programs.program import read_program

pytestmark = pytest.mark.slow
GUEST = Path(__file__).parent / "guests/device_programs.ts"
MISTAKES = (
    "add of sizes [vocabulary] and [5]",
    "add of float [vocabulary] and int []: cast one of them",
    "there is no state.y; the program was given x",
    "<float [vocabulary]> in an operator: use its methods",
    "returned <float [vocabulary]>: a program returns a token, int []",
    "only within a function of `device.program`",
    "mean of <float [vocabulary]>, whose size is no number",
    "<float [vocabulary]> has no length that is known",
    "draw takes one axis, not float []",
    "9007199254740992 is no whole number of 64 bits; beyond 2^53 give a BigInt",
    "9223372036854775808 is no whole number of 64 bits",
    "returned <bool [tokens]>: what is kept is bool [pages]",
    "a slice of <float [heads, tokens]> needs an end",
    "beside 2: 0 to 1",
    "more is float [], and is given int []",
)


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    """What the guest tells."""
    told = json.loads(client.launch(client.upload(GUEST)).result())
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("name", TEXTS)
def test_a_program_has_the_hash_of_pythons(found: dict[str, Any], name: str) -> None:
    assert found["texts"][name] == TEXTS[name]
    assert read_program(found["texts"][name]).hash == read_program(TEXTS[name]).hash


@pytest.mark.parametrize("name", ATTEND_TEXTS)
def test_a_program_of_the_stage_attend_has_the_text_of_pythons(
    found: dict[str, Any], name: str
) -> None:
    assert found["attendTexts"][name] == ATTEND_TEXTS[name]


def test_mistakes_are_told(found: dict[str, Any]) -> None:
    assert found["texts"].keys() == TEXTS.keys()
    assert found["attendTexts"].keys() == ATTEND_TEXTS.keys()
    for told, wanted in zip(found["mistakes"], MISTAKES, strict=True):
        assert wanted in told


def test_state_goes_on(found: dict[str, Any]) -> None:
    assert (found["tokens"], found["more"]) == ([10, 11, 12, 13, 14], [15, 16, 17])
    assert len(found["drawn"]) == 8


def test_whole_numbers_of_state_are_exact(found: dict[str, Any]) -> None:
    x, y, table, low = found["states"][0]
    assert (int(x), table, low) == (2**53 + 5, f"{-(2**63) + 7} 5", "-Infinity")
    assert float(y) == pytest.approx(2 * 2**53, rel=1e-6)
    x, _, table, _ = found["states"][1]
    assert (int(x), table) == (2**53 + 7, f"{-(2**63) + 6} 4")


def test_a_watermark_is_recognized(found: dict[str, Any]) -> None:
    tokens = found["watermarked"]
    for i, key in enumerate((42, 43)):
        assert found["scores"][i] == pytest.approx(watermark.synthid_score(tokens, key=key))
        assert found["shares"][i] == pytest.approx(watermark.gumbel_score(tokens, key=key))


def test_speculation_changes_no_token(found: dict[str, Any]) -> None:
    plain, guessed, improved, drafted = found["guessed"]
    assert plain == guessed == improved == drafted
    number, alone = found["refused"]
    assert "speculate is 17: 1 to 16 tokens can be guessed" in number
    assert "a drafter goes with `speculate`" in alone
    given, none = found["like"]
    assert given == none == plain


def test_a_program_is_given_other_values(found: dict[str, Any]) -> None:
    put = found["put"]
    assert put["tokens"] == [10, 11, 12, 53, 54, 55, 20, 21, 22]
    assert put["state"] == [20, 3]
    assert "token is int [], and is given float []" in put["kind"]
    assert "PieError: invalid-argument" in put["name"]
    assert "no device program has chosen" in put["early"]


def test_a_context_beside_is_read(found: dict[str, Any]) -> None:
    own, other, whole, none = found["beside"]
    assert own != other
    assert (whole, none) == (own, other)
    assert "reads the logits of 1 contexts beside this one" in found["alone"]


def test_layers_read_a_part(found: dict[str, Any]) -> None:
    texts = found["attended"]
    assert texts["whole"] == texts["all pages"]
    for name in ("sinks", "quest", "tova", "h2o", "snapkv"):
        assert len(texts[name]) == len(texts["whole"])
        assert texts[name][0] == texts["whole"][0]
    assert len({tuple(tokens) for tokens in texts.values()}) > 3
    grammar, steps = found["attendRefused"]
    assert "not with `choose`, a grammar" in grammar
    assert "read the generation by its `collect`" in steps
