"""Programs of the library in Rust do what those in Python do."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.library import Library
from support.rust_components import rust_component

from pie_py.client.errors import InferletFailed

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(library: Library) -> Run:
    """What a program in Rust returns."""

    def run(name: str, **options: object) -> Any:
        program = library.client.upload(rust_component(name), name=f"{name}-rust")
        return json.loads(library.launch_uploaded(program, (), **options).result())

    return run


def test_beam_search(library: Library, run: Run) -> None:
    options: dict[str, object] = {"prompt": "The quick", "width": 3, "max_tokens": 8}
    options["model_name"] = "test"
    found = run("beam_search", **options)
    wanted = library.run("beam_search", **options)
    assert [beam["tokens"] for beam in found] == [beam["tokens"] for beam in wanted]
    assert [beam["score"] for beam in found] == pytest.approx(
        [b["score"] for b in wanted], abs=1e-4
    )
    assert run("beam_search", prompt="", max_tokens=0) == library.run("beam_search", max_tokens=0)


@pytest.mark.nightly
def test_speculative_decoding(library: Library, run: Run) -> None:
    prompt = "abcabcabcabcabc"
    text = library.complete(prompt, 64)  # its prefix is cached from here on
    before = library.forwards()[1]
    found = run("speculative_decoding", prompt=prompt)
    assert library.forwards()[1] - before < 0.7 * len(found["tokens"])
    assert found["text"] == text
    with pytest.raises(InferletFailed, match="1 to 16 tokens can be guessed"):
        run("speculative_decoding", prompt=prompt, draft_tokens=17)


@pytest.mark.nightly
def test_prefix_caching(run: Run) -> None:
    prefix = f"Rena lives in Swoosuk. Her number is {uuid.uuid4().hex}. "
    options: dict[str, object] = {"prefix": prefix, "prompt": "Rena", "model_name": "test"}
    first, again = (run("prefix_caching", **options) for _ in range(2))
    assert again["text"] == first["text"]
    assert again["computed"] < 8 < first["computed"]


@pytest.mark.nightly
def test_launches_at_once_may_all_compute_what_is_kept(library: Library) -> None:
    program = library.client.upload(rust_component("prefix_caching"), name="prefix_caching-rust")
    options: dict[str, object] = {"prefix": "Rena is a small fox. " * 10, "prompt": "She"}
    options["model_name"] = "test"
    launched = [library.launch_uploaded(program, (), **options) for _ in range(3)]
    assert len({json.loads(one.result())["text"] for one in launched}) == 1


@pytest.mark.nightly
def test_windowed_attention(library: Library, run: Run) -> None:
    options: dict[str, object] = {"prompt": "The quick brown fox", "window": 20, "max_tokens": 50}
    options["model_name"] = "test"
    found, wanted = (
        run("windowed_attention", **options),
        library.run("windowed_attention", **options),
    )
    assert found["tokens"] == wanted["tokens"]
    assert found["pages"] <= 3
    options.update(prompt="Once upon a time", model_name="pie-tiny")  # it starts with a token
    assert run("windowed_attention", **options) == library.run("windowed_attention", **options)
    options.update(prompt="The quick", max_tokens=999, model_name="small")
    assert run("windowed_attention", **options) == library.run("windowed_attention", **options)
    with pytest.raises(InferletFailed, match="nothing to continue: give a `--prompt`"):
        run("windowed_attention", prompt="", model_name="test")


@pytest.mark.nightly
def test_tree_of_thought(run: Run) -> None:
    found = run("tree_of_thought", question="What is 880 - 826?", branches=6)
    assert found == {"answer": "Answer: 54", "value": 5}


def test_react(library: Library, run: Run, url: str) -> None:
    question = "Where does the neighbour of the brother of Edgar live?"
    found = run("react", question=question, url=url)
    assert found["answer"] == "Dublin"
    assert len(found["calls"]) == 3
