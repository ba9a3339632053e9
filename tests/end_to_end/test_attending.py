"""Generations that read a part of their context, on a server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
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


def test_ways_to_read_them_tell_the_same_tokens(server: Server, guests: Path) -> None:
    told = run(server, guests, "ways")
    texts = told["texts"]
    for found in texts:
        assert len(found["run"]) == 12
        for way in ("steps", "logprobs", "looks", "left"):
            assert found[way] == found["run"], way
        assert found["chosen"] == found["likeliest"]
    assert len({tuple(found["run"]) for found in texts}) > 2
    looked, flushed = told["appended"]
    assert looked == flushed  # what a program appends reads all
    assert looked[0] != looked[1]


@torch.inference_mode()
def greedy(
    checkpoint: Path,
    vector: torch.Tensor,
    seen: list[torch.Tensor],
    prompt: Sequence[int] = PROMPT,
    place: int = 0,
) -> list[int]:
    """Tokens of transformers' module, to whose second layer's input a vector is added: the
    likeliest ones, or those at another place.
    """
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
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].topk(2).indices[place]))
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


def written(checkpoint: Path, rule: Callable[[torch.Tensor, list[torch.Tensor]], int]) -> list[int]:
    """What a rule writes of transformers' logits behind the prompt, and of what each layer is
    given there.
    """
    model, tokens = reference.load(checkpoint), list(PROMPT)
    with torch.inference_mode():
        for _ in range(40):
            found = model(torch.tensor([tokens]), output_hidden_states=True)
            tokens.append(rule(found.logits[0, -1], [x[0, -1] for x in found.hidden_states]))
    return tokens[len(PROMPT) :]


def test_samplers_that_look_at_layers(server: Server, guests: Path, checkpoint: Path) -> None:
    found = run(server, guests, "contrasts")
    model = reference.load(checkpoint)

    def dola(logits: torch.Tensor, residuals: list[torch.Tensor]) -> int:
        """Chuang et al. 2024, equations 1 to 4, with exits before layers 0 and 1."""
        mature = logits.softmax(-1)
        exits = [model.lm_head(model.model.norm(x)).softmax(-1) for x in residuals[:2]]

        def distance(premature: torch.Tensor) -> float:
            middle = (mature + premature) / 2
            sides = [(p * (p / middle).log()).sum() for p in (mature, premature)]
            return float(sum(sides)) / 2

        premature = max(exits, key=distance)
        scores = (mature / premature).log()
        return int(scores.masked_fill(mature < 0.1 * mature.max(), -torch.inf).argmax())

    wanted = written(checkpoint, dola)
    assert wanted != written(checkpoint, lambda logits, _: int(logits.argmax()))
    assert found["dola"] == [wanted, wanted, wanted]

    def by_score(logits: torch.Tensor, residuals: list[torch.Tensor]) -> int:
        return int((-logits if residuals[0].sum() > 0 else logits).argmax())

    wanted = written(checkpoint, by_score)
    assert found["scored"] == [wanted, wanted]
    vector = torch.tensor([((7 * i) % 11 - 5) / 20 for i in range(64)])
    assert found["chosen"] == [greedy(checkpoint, vector, [], place=1)] * 2


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
            "lens of 3 numbers: a residual has 64",
            "the program in the layers keeps no early, but bias, scores, sums, weights",
            "the program in the layers keeps no early, but nothing: the generation has none",
            "lens of 3 numbers: a residual has 64",
            "accept none, but `await step.execute()`",
            "begin a new generation",
        ),
        strict=True,
    ):
        assert wanted in told, told
