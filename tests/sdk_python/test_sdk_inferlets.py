"""The ready inferlets and the examples run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sdk_rig import BOS, END, Rig, continuation

ROOT = Path(__file__).resolve().parents[2]
COMPLETION = ROOT / "inferlets" / "text_completion"


def test_text_completion(rig: Rig) -> None:
    source = (COMPLETION / "main.py").read_text()
    outcome = rig.run(source, "--prompt", "The capital of", "--max-tokens", "30")
    assert outcome.ok, outcome.text
    assert outcome.text == ""
    expected = continuation([BOS, *b"The capital of"], 30)
    assert "".join(str(m) for m in outcome.sent) == bytes(expected).decode()
    assert len(outcome.sent) == 30


def test_text_completion_answers_in_the_chat_format(rig: Rig) -> None:
    source = (COMPLETION / "main.py").read_text()
    outcome = rig.run(source, "--chat", "--prompt", "Hi", "--max-tokens", "9")
    assert outcome.ok, outcome.text
    user, assistant = BOS + 2, BOS + 3
    expected = continuation([BOS, user, *b"Hi", END, assistant], 9)
    assert "".join(map(str, outcome.sent)) == bytes(expected).decode()


def test_text_completion_is_repeatable_by_its_seed(rig: Rig) -> None:
    source = (COMPLETION / "main.py").read_text()
    options = ["--prompt", "x", "--max-tokens", "20", "--temperature", "0.9", "--seed"]
    outcomes = rig.run_all([(source, [*options, seed]) for seed in "112"])
    # A message has as many tokens as were there.
    one, again, two = ("".join(map(str, outcome.sent)) for outcome in outcomes)
    assert one == again
    assert one != two


def test_text_completion_refuses_a_wrong_sampler(rig: Rig) -> None:
    source = (COMPLETION / "main.py").read_text()
    outcome = rig.run(source, "--prompt", "x", "--temperature", "-1")
    assert outcome.text.startswith("usage: ")
    assert "temperature is -1.0; it is a number, 0 to 10000" in outcome.text


@pytest.mark.parametrize(
    ("name", "part"),
    [("hello", "Hello, world!"), ("digits_only", "0000"), ("chat_loop", "1 turns")],
)
def test_examples(rig: Rig, name: str, part: str) -> None:
    outcome = rig.run((ROOT / "examples" / f"{name}.py").read_text(), send=["hi", ""])
    assert outcome.ok, outcome.text
    assert part in outcome.text
