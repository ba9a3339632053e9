"""Device programs of Rust: texts that the server reads, and what they choose."""

from __future__ import annotations

import json
import re

import pytest
from support.rust_components import Run

from pie_py.client.errors import ClientError

MISTAKES = (
    r"program:3:15: add of float \[vocabulary\] and int \[\]: cast one of them",
    r"x is an empty list",
    r"x is float \[\]: something else was given",
    r"there is no field 'temprature'",
    r"f returned <bool \[heads\]>: what is kept is bool \[tokens\]",
)


def test_mistakes_are_told_with_their_place(run: Run) -> None:
    found = json.loads(run("device_guests", "mistakes")[1])
    for told, wanted in zip(found, MISTAKES, strict=True):
        assert told.startswith("invalid-argument: ")
        assert re.search(wanted, told), told


def test_the_same_seed_writes_the_same_text_however_it_is_read(run: Run) -> None:
    for text, tokens, steps in json.loads(run("device_guests", "ways")[1]):
        assert len(tokens) == 8
        assert text == tokens == steps


def test_state_goes_on_and_chance_is_the_seeds(run: Run) -> None:
    found = json.loads(run("device_guests", "runs")[1])
    assert (found["tokens"], found["more"]) == ([10, 11, 12, 13, 14], [15, 16, 17])
    assert str(2**53 + 5) in found["state"]
    assert "-inf" in found["state"]
    assert found["drawn"][0] == found["drawn"][1] != found["drawn"][2]
    assert "no device program has chosen a token" in found["none"]


def test_undone_tokens_and_state(run: Run) -> None:
    with pytest.raises(ClientError, match="has state: begin a new generation"):
        run("device_guests", "undone")


def test_a_program_is_given_other_values(run: Run) -> None:
    found = json.loads(run("device_guests", "put")[1])
    assert found["tokens"] == [10, 11, 12, 53, 54, 55, 20, 21, 22]
    assert found["state"] == [20, 3]
    early, kind, name = found["errors"]
    assert "no device program has chosen a token" in early
    assert "token is int []: something else was given" in kind
    assert "other is none of its names" in name


def test_a_context_beside_is_read(run: Run) -> None:
    found = json.loads(run("device_guests", "beside")[1])
    own, other, whole, none = found["texts"]
    assert own != other
    assert (whole, none) == (own, other)
    assert "reads the logits of 1 contexts beside this one" in found["alone"]


def test_guesses_from_another_text_change_no_token(run: Run) -> None:
    (plain, guessed, improved), alone = json.loads(run("device_guests", "like")[1])
    assert plain == guessed == improved
    assert "`jacobi` goes with `speculate`" in alone


def test_layers_read_a_part(run: Run) -> None:
    found = json.loads(run("device_guests", "attend")[1])
    whole, all_pages, all_of_text, *parts = found["tokens"]
    assert whole == all_pages == all_of_text
    assert {len(tokens) for tokens in parts} == {len(whole)}
    assert {tokens[0] for tokens in parts} == {whole[0]}
    assert len({tuple(tokens) for tokens in parts}) > 2
    for run_ahead, *others in found["ways"]:
        assert len(run_ahead) == 10
        assert others == [run_ahead] * 4  # steps, grammar, sampled, looks
    assert "accept none" in found["refused"]
    plain, probed, contrasted, sums, missing = found["layers"]
    assert plain == probed != contrasted
    assert len(contrasted) == len(plain)
    assert abs(sums[0]) > 0.1
    assert "no program is called 'nothing'" in missing
