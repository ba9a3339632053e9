"""Device programs of JavaScript have the texts of Python's, and run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from inferlet import device
from inferlet.device import State, Tensor
from pie_py.client.sync import Client
from pie_py.device_programs.program import read_program

pytestmark = pytest.mark.slow
GUEST = Path(__file__).parent / "guests/device_programs.ts"


@device.program
def greedy(logits: Tensor) -> Tensor:
    return logits.argmax()


@device.program
def tempered(logits: Tensor, state: State) -> Tensor:
    kept = (logits / state.temperature).where(device.nucleus(logits, state.p), -math.inf)
    return device.draw(kept)


@device.program
def mirostat(logits: Tensor, state: State) -> Tensor:
    surprise = -logits.log_softmax() / math.log(2)
    token = device.draw(logits.where(surprise <= state.mu, -math.inf))
    state.mu = state.mu - (surprise[token] - 5.0) * 0.1
    return token


@device.program
def penalized(logits: Tensor) -> Tensor:
    less = device.where(logits > 0, logits / 1.2, logits * 1.2)
    return less.where((device.counts() > 0) | device.given(), logits).argmax()


@device.program
def green(logits: Tensor, state: State) -> Tensor:
    before = device.newest(1)[0]
    drawn = (device.hash(device.hash(state.key, before), device.iota()) >> 40) & 0xFFFFFF
    return device.draw(logits + (drawn.to_float() < 0.5 * 2**24).to_float() * 2)


@device.program
def shapes(logits: Tensor, state: State) -> Tensor:
    top = logits.top(8)
    mean = logits[top].reshape(2, 4).transpose().sum().mean()
    folded = device.fold(lambda a, x: a + x, mean, state.table[1:-1])
    return device.where(~(folded != 0), top[-1], device.step() % 3)


TEXTS = {
    "greedy": greedy().text,
    "tempered": tempered(temperature=0.7, p=0.9).text,
    "mirostat": mirostat(mu=10.0).text,
    "penalized": penalized().text,
    "green": green(key=42).text,
    "shapes": shapes(table=[0.5, 1.0, 2.0, -1.0]).text,
}


def test_programs_of_javascript(client: Client) -> None:
    program = client.upload(GUEST)
    found = json.loads(client.launch(program).result())
    assert found["texts"] == TEXTS
    hashes = {name: read_program(text).hash for name, text in found["texts"].items()}
    assert len(set(hashes.values())) == len(TEXTS)
    for told, wanted in zip(
        found["mistakes"],
        (
            "add of sizes [vocabulary] and [5]",
            "add of float [vocabulary] and int []: cast one of them",
            "there is no state.y; the program was given x",
            "<float [vocabulary]> in an operator: use its methods",
            "returned <float [vocabulary]>: a program returns a token, int []",
            "only within a function of `device.program`",
            "mean of <float [vocabulary]>, whose size is no number",
            "<float [vocabulary]> has no length that is known",
            "draw takes one axis, not float []",
        ),
        strict=True,
    ):
        assert wanted in told
    assert (found["tokens"], found["more"]) == ([10, 11, 12, 13, 14], [15, 16, 17])
    assert len(found["drawn"]) == 8
