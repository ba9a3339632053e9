"""Batched decoding gives what one sequence at a time gives, with interrupts and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.pie_tiny.decoding import decode

VOCABULARY = 61


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    configuration = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        # far from ties, so that batching cannot change which token is likeliest
        initializer_range=0.3,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(configuration)


@dataclass
class Scripted:
    """Ends after so many tokens of its own; after some of them others are put in."""

    prompt: list[int]
    length: int
    interrupts: dict[int, list[int]] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    done: bool = False
    was_cut: bool = False

    @property
    def expected(self) -> int:
        return len(self.prompt) + self.length

    def sampled(self, token: int) -> Sequence[int]:
        assert not self.done
        self.written.append(token)
        given = self.interrupts.get(len(self.written), [])
        self.whole += [token, *given]
        self.done = len(self.written) == self.length
        return given

    def cut(self) -> None:
        self.done = self.was_cut = True


def draw(random: Random, interrupted: bool) -> Scripted:
    def tokens(low: int, high: int) -> list[int]:
        return [random.randrange(VOCABULARY) for _ in range(random.randint(low, high))]

    length = random.randint(1, 60)
    places = random.sample(range(1, length + 1), min(length, 4)) if interrupted else []
    return Scripted(tokens(1, 30), length, {place: tokens(1, 9) for place in places})


@torch.inference_mode()
def one_by_one(model: LlamaForCausalLM, script: Scripted) -> list[int]:
    """The same again, slowly: everything computed again for each token."""
    ids, written, after = list(script.prompt), 0, []
    while written < script.length:
        token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        written += 1
        after += [token, *script.interrupts.get(written, [])]
        ids = [*script.prompt, *after]
    return after


def test_with_interrupts_it_is_one_sequence_at_a_time(model: LlamaForCausalLM) -> None:
    random = Random(2)
    scripts = [draw(random, interrupted=True) for _ in range(12)]
    decode(model, scripts, rows=8)
    for script in scripts:
        assert script.done
        assert script.whole == one_by_one(model, script)


def test_what_is_too_long_is_cut(model: LlamaForCausalLM) -> None:
    short, long = Scripted([1, 2], 5), Scripted([3], 100)
    decode(model, [short, long], limit=20)
    assert short.done
    assert not short.was_cut
    assert long.was_cut
    assert len(long.whole) < 20
