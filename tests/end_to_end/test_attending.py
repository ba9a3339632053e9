"""Generations that read a part of their context, on a server."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import reference
from support.servers import Server

pytestmark = pytest.mark.slow
PROMPT = random.Random(6).choices(range(3, 300), k=40)


def run(server: Server, guests: Path, mode: str) -> Any:
    with server.client() as client:
        program = client.upload(guests / "attending.py")
        return json.loads(client.launch(program, [mode, json.dumps(PROMPT)]).result())


def test_policies_alone_together_and_of_forks(server: Server, guests: Path) -> None:
    found = run(server, guests, "policies")
    alone = found["alone"]
    assert found["together"] == alone
    assert alone["all pages"] == alone["whole"]
    assert found["drawn"][0] == found["drawn"][1]
    assert found["forked"] == [alone["tova"], alone["h2o"], alone["whole"]]
    assert found["flushed"] == {name: alone[name] for name in ("h2o", "snapkv", "tova")}
    texts = {tuple(tokens) for tokens in alone.values()}
    assert len(texts) == len(alone) - 1  # each policy makes a difference


def test_sinks_are_what_a_mask_of_them_shows(
    server: Server, guests: Path, checkpoint: Path
) -> None:
    tokens = [*PROMPT, *run(server, guests, "policies")["alone"]["sinks"]]
    count = len(tokens)
    visible = [
        [j <= i and (i < len(PROMPT) or j < 4 or j > i - 12) for j in range(count)]
        for i in range(count)
    ]
    for end in range(len(PROMPT), count):
        rows = [row[:end] for row in visible[:end]]
        likely = reference.probabilities(checkpoint, tokens[:end], list(range(end)), rows)
        assert likely[tokens[end]] >= likely.max() * (1 - 1e-3)


def test_ways_to_read_them_tell_the_same_tokens(server: Server, guests: Path) -> None:
    told = run(server, guests, "ways")
    texts = told["texts"]
    for found in texts:
        assert len(found["run"]) == 12
        for way in ("steps", "logprobs", "looks", "left"):
            assert found[way] == found["run"], way
    assert len({tuple(found["run"]) for found in texts}) > 2
    looked, flushed = told["appended"]
    assert looked == flushed  # what a program appends reads all
    assert looked[0] != looked[1]


@torch.inference_mode()
def greedy(
    checkpoint: Path, vector: torch.Tensor, seen: list[torch.Tensor], prompt: Sequence[int] = PROMPT
) -> list[int]:
    """Tokens of transformers' module, to whose second layer's input a vector is added."""
    model, tokens = reference.load(checkpoint), list(prompt)
    held = [
        model.model.layers[1].register_forward_pre_hook(
            lambda module, args: (args[0] + vector, *args[1:])
        ),
        model.model.layers[0].register_forward_pre_hook(
            lambda module, args: seen.append(args[0][0])
        ),
    ]
    try:
        for _ in range(40):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    finally:
        for each in held:
            each.remove()
    return tokens[len(prompt) :]


def test_programs_in_the_layers(server: Server, guests: Path, checkpoint: Path) -> None:
    found = run(server, guests, "layers")
    vector = torch.tensor([((7 * i) % 11 - 5) / 20 for i in range(64)])
    seen: list[torch.Tensor] = []
    plain = greedy(checkpoint, torch.zeros(64), seen)
    steered = greedy(checkpoint, vector, [])
    assert steered != plain
    assert found["steered"] == [steered, plain, steered]
    assert found["flushed"] == [steered, steered]
    assert found["stepped"] == steered
    assert found["plain"] == [plain, plain]
    assert found["sums"] == pytest.approx([float(seen[-1].sum())], abs=1e-2)
    (changed, left, again), (first, between, last) = found["unseen"]
    assert changed == again != left  # neither is found in the cache by the other
    assert first == last != between
    assert left == greedy(checkpoint, torch.zeros(64), [], PROMPT[::-1])
    assert between == greedy(checkpoint, vector, [], [*PROMPT[::-1][:-1], 9])
    assert len(found["lens"]["tokens"]) == len(found["lens"]["logprobs"]) == 1
    assert found["lens"]["logprobs"][0] < 0


def test_a_grammar_is_what_a_mask_by_hand_gives(server: Server, guests: Path) -> None:
    found = run(server, guests, "grammar")
    for tokens, by_hand, _ in found:
        assert tokens == by_hand
    assert found[0][2]
    assert len({tuple(tokens) for tokens, _, _ in found}) > 3  # what is read makes a difference


def test_what_is_refused(server: Server, guests: Path) -> None:
    for told, wanted in zip(
        run(server, guests, "refused"),
        (
            "attend.seed: Extra inputs are not permitted",
            "at most, with 32 heads and 4096 tokens",
            "sinks takes logits and, if it has any, state",
            "20 of them have run before, and they can't run again",
            "not with `choose`: leave one out",
            "accept none, but `await step.execute()`",
            "begin a new generation",
        ),
        strict=True,
    ):
        assert wanted in told, told
