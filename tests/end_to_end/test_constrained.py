"""Texts within grammars through the whole system; `test_grammar.py` has what they let through."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rust_components import rust_component
from support.servers import Server

pytestmark = pytest.mark.slow


LANGUAGES = ("python", "rust")


@pytest.fixture(scope="module")
def run(server: Server, guests: Path) -> Iterator[Any]:
    with server.client() as client:

        def call(mode: str, language: str = "python", **given_values: Any) -> Any:
            rust = language == "rust"
            program = rust_component("sample_guests") if rust else guests / "grammar.py"
            mode = {"generate": "grammars"}.get(mode, mode) if rust else mode
            instance = client.launch(client.upload(program), [mode, json.dumps(given_values)])
            return json.loads(instance.result())

        yield call


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 300), k=length)


@pytest.mark.parametrize("language", LANGUAGES)
def test_too_few_tokens_cut_the_text_short_and_say_so(run: Any, language: str) -> None:
    [answer] = run(
        "generate",
        language,
        tokens=prompt(3, 3),
        grammars=[{"kind": "regex", "text": "[a-z]{50}"}],
        temperature=1.5,
        seed=3,
        forced=True,
        count=5,
    )
    assert not answer["complete"]
    assert re.fullmatch("[a-z]{5,49}", answer["text"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_that_samples_from_the_mask_gets_what_the_server_chooses(
    run: Any, language: str
) -> None:
    lark = 'start: (WORD " ")~2..4 "."\nWORD: /[a-z]{1,6}/'
    answer = run("own", language, tokens=prompt(8, 8), kind="lark", text=lark, count=60)
    assert answer["own"] == answer["theirs"]
    assert answer["own"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_any_json_object(run: Any, language: str) -> None:
    texts = ["{}", '{"a": [1, {"b": null}]}', '{"a": ', "[1]", "1", "{1: 2}"]
    told = run("objects", language, texts=texts)
    assert told == [[True, True], [True, True], [True, False], *[[False, False]] * 3]


def test_the_example(server: Server) -> None:
    source = Path(__file__).parents[2] / "examples" / "structured_output.py"
    with server.client() as client:
        answers = json.loads(client.launch(client.upload(source), []).result())
    assert answers["mood"] in ("glad", "sad", "neither")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", answers["date"])
    assert 1 <= len(answers["people"]) <= 2
    for person in answers["people"]:
        assert person["role"] in ("host", "guest", "unknown")
        assert 0 <= person["age"] <= 120


HOLDS = b"""
from inferlet import raw

async def main(matchers: bool) -> str:
    [model] = raw.available_models()
    held = 0
    for number in range(8):
        future = raw.compile_grammar(model, "regex", f"{number}{'a' * 150_000}")
        raw.wait([future])
        try:
            if matchers:
                grammar = raw.take_grammar(future)
                raw.create_matcher(grammar)
                raw.release_grammar(grammar)
            else:
                number < 4 or raw.take_grammar(future)
        except Exception as error:
            return f"{held} {error}"
        held += 1
    return f"{held}"
"""


@pytest.mark.parametrize("matchers", [True, False])
def test_grammars_count_as_long_as_anything_holds_them(matchers: bool) -> None:
    """A matcher whose grammar was released, or a future that is not taken."""
    with Server(quotas={"local": {"share": 0.1}}) as server, server.client() as client:
        program = client.upload(HOLDS, "holds")
        result = client.launch(program, ["--matchers" if matchers else "--no-matchers"]).result()
        held, _, why = result.partition(" ")
        assert 2 <= int(held) <= 4
        assert "limit-exceeded" in why
        assert "bytes of grammars" in why
