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
    r"x is float \[\]: .* was given",
    r"there is no field 'temprature'",
    r"no program is called 'nothing'",
)


def test_mistakes_are_told_with_their_place(run: Run) -> None:
    found = json.loads(run("device_guests", "mistakes")[1])
    for told, wanted in zip(found, MISTAKES, strict=True):
        assert told.startswith(("invalid-argument: ", "not-found: "))
        assert re.search(wanted, told), told


def test_the_same_seed_writes_the_same_text_however_it_is_read(run: Run) -> None:
    for text, tokens, steps in json.loads(run("device_guests", "ways")[1]):
        assert len(tokens) == 8
        assert text == tokens == steps


def test_state_changes_and_chance_is_the_seeds(run: Run) -> None:
    found = json.loads(run("device_guests", "runs")[1])
    assert found["tokens"] == [10, 11, 12, 13, 14]
    assert found["exact"] == [10]
    assert found["drawn"][0] == found["drawn"][1] != found["drawn"][2]


def test_undone_tokens_and_state(run: Run) -> None:
    with pytest.raises(ClientError, match="has state: begin a new generation"):
        run("device_guests", "undone")


def test_guesses_change_no_token(run: Run) -> None:
    plain, guessed = json.loads(run("device_guests", "guessed")[1])
    assert plain == guessed
