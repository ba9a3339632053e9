"""Device programs of Rust have the texts of Python's, and run."""

from __future__ import annotations

import json
import re

import pytest
from support.device_texts import ATTEND_TEXTS, TEXTS
from support.rust_components import REPOSITORY, Run

from pie_py.client.errors import ClientError
from pie_py.device_programs.program import read_program

GUEST = REPOSITORY / "tests" / "device_guests" / "src" / "lib.rs"


@pytest.fixture(scope="module")
def texts(run: Run) -> dict[str, str]:
    """Those of Rust, by name."""
    found = json.loads(run("device_guests", "texts")[1])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_a_program_has_the_hash_of_pythons(texts: dict[str, str], name: str) -> None:
    assert texts[name] == TEXTS[name]
    assert read_program(texts[name]).hash == read_program(TEXTS[name]).hash


def test_each_one_is_another(texts: dict[str, str]) -> None:
    assert texts.keys() == TEXTS.keys()
    assert len(set(texts.values())) == len(TEXTS)


MISTAKES = (
    r"add of sizes \[vocabulary\] and \[5\]",
    r"add of float \[vocabulary\] and int \[\]: cast one of them",
    r"state.x is float \[\], and becomes float \[vocabulary\]",
    r"there is no state.y; the program was given x",
    r"the function returned float \[vocabulary\]: a program returns a token, int \[\]",
    r"mean of float \[vocabulary\], whose size is no number",
    r"float \[vocabulary\] has no length that is known",
    r"draw takes one axis, not float \[\]",
    r"a tensor that another call of a program has made",
    r"nucleus takes one share, not float \[vocabulary\]",
    r"the function returned float \[vocabulary\]",
    r"x is an empty list",
    r"x: a program is given numbers, or minus infinity",
)


def test_a_mistake_is_told_with_its_line(run: Run) -> None:
    found = json.loads(run("device_guests", "mistakes")[1])
    lines = GUEST.read_text().splitlines()
    for number, (told, wanted) in enumerate(zip(found, MISTAKES, strict=True)):
        assert re.search(wanted, told), told
        assert told.startswith("invalid-argument: ")
        places = [i for i, line in enumerate(lines, 1) if line.endswith(f"// {number}")]
        for place in places:
            assert f"src/lib.rs:{place}: " in told
    assert sum(re.search(r"// \d$", line) is not None for line in lines) == 9


def test_tensors_are_there_only_within_a_program(run: Run) -> None:
    with pytest.raises(ClientError, match="trap"):
        run("device_guests", "outside")


def test_state_goes_on_and_chance_is_the_seeds(run: Run) -> None:
    found = json.loads(run("device_guests", "runs")[1])
    assert (found["tokens"], found["more"]) == ([10, 11, 12, 13, 14], [15, 16, 17])
    assert str(2**53 + 5) in found["state"]
    assert "-inf" in found["state"]
    assert found["drawn"][0] == found["drawn"][1] != found["drawn"][2]
    assert "no device program chooses" in found["none"]


def test_undone_tokens_and_state(run: Run) -> None:
    with pytest.raises(ClientError, match="has state: begin a new generation"):
        run("device_guests", "undone")


def test_programs_of_the_stage_attend_have_the_texts_of_pythons(run: Run) -> None:
    assert json.loads(run("device_guests", "attend texts")[1]) == ATTEND_TEXTS


def test_a_program_is_given_other_values(run: Run) -> None:
    found = json.loads(run("device_guests", "put")[1])
    assert found["tokens"] == [10, 11, 12, 53, 54, 55, 20, 21, 22]
    assert found["state"] == [20, 3]
    early, kind, name = found["errors"]
    assert "no device program has chosen a token" in early
    assert "token is int [], and is given float []" in kind
    assert "the program was given no other" in name


def test_a_context_beside_is_read(run: Run) -> None:
    found = json.loads(run("device_guests", "beside")[1])
    own, other, whole, none = found["texts"]
    assert own != other
    assert (whole, none) == (own, other)
    assert "reads the logits of 1 contexts beside this one" in found["alone"]


def test_guesses_from_another_text_change_no_token(run: Run) -> None:
    (plain, guessed, improved, drafted), alone = json.loads(run("device_guests", "like")[1])
    assert plain == guessed == improved == drafted
    assert "`jacobi` and `drafter` go with `speculate`" in alone


def test_layers_read_a_part(run: Run) -> None:
    found = json.loads(run("device_guests", "attend")[1])
    whole, all_pages, *parts = found["tokens"]
    assert whole == all_pages
    assert {len(tokens) for tokens in parts} == {len(whole)}
    assert {tokens[0] for tokens in parts} == {whole[0]}
    assert len({tuple(tokens) for tokens in parts}) > 2
    steps, alone, wrong = found["refused"]
    assert "read tokens or text" in steps
    assert "or without `run_ahead`" in alone
    assert "the function returned bool [heads]: what is kept is bool [pages]" in wrong
