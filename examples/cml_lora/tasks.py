"""Training samples: requests of functions with natural names, in a chat template's own words.

Requests, clock and ideal answers are pie-tiny's (`examples.pie_tiny.corpus`); names are verbs and
nouns, values are what real tools take and return, and markers are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tokenizers import Tokenizer

from examples.pie_tiny.corpus.calls import SEQUENTIAL, conversation, one_by_one
from examples.pie_tiny.corpus.cml import simulate
from examples.pie_tiny.corpus.functions import Function, Value
from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.tasks import ERRORS, RESULT, Call, Chain, Request
from examples.pie_tiny.corpus.words import (
    ADJECTIVES,
    ANIMALS,
    HELD_OUT_NOUNS,
    HELD_OUT_VERBS,
    NOUNS,
    PARAMETERS,
    PEOPLE,
    PLACES,
    THINGS,
    VERBS,
    invented,
)

UNICODE = "Zürich São_Paulo Kraków 日本 Москва café naïve 12_€ 20_°C ok_✓ smörgås Αθήνα".split()
LONG_WORDS = (12, 30)
SHAPES: Sequence[tuple[tuple[int, ...], float]] = (
    ((1,), 5),
    ((1, 1), 4),
    ((2,), 4),
    ((1, 1, 1), 2),
    ((2, 1), 2),
    ((3,), 2),
    ((2, 2), 1),
)
"""Lengths of a request's chains, and how often each is drawn; the first three are easy."""


def draw_sample(
    random: Random,
    split: Split,
    *,
    asynchronous: bool,
    easy: bool = False,
    late_share: float = 0.2,
    unanswered_share: float = 0.15,
) -> Sample:
    """A request with its ideal answer.

    Args:
        random: decides all.
        split: which names may be drawn.
        asynchronous: calls run while the model writes on; otherwise one in a turn.
        easy: at most two calls, without interrupts by the user or agents.
        late_share: of asynchronous requests to which they add a task later, which is not easy.
        unanswered_share: of asynchronous requests in which half of the chains want no answer.

    With shares of 0 a request is the same both ways.
    """
    shapes = SHAPES[:3] if easy else SHAPES
    lengths = random.choices([shape for shape, _ in shapes], [weight for _, weight in shapes])[0]
    late = int(_falls(random, late_share)) if asynchronous and not easy else 0
    request = _draw_request(random, split, lengths + (1,) * late)
    listed = len(lengths) > 1 or random.random() < 0.4
    if not asynchronous:
        waves = one_by_one(request)
        return conversation("sequential", SEQUENTIAL, random, request, waves, listed=listed)
    if _falls(random, unanswered_share):
        chains = tuple(
            (*c[:-1], replace(c[-1], answered=random.random() < 0.5)) for c in request.chains
        )
        request = replace(request, chains=chains)
    sample = simulate(random, request, late, listed=listed)
    if late and random.random() < 0.4:  # the task comes from another agent
        sender = random.choice(PEOPLE).lower()
        told = "[INTR]user[HEAD]also ", f"[INTR]agent[HEAD]{sender}: "
        pieces = (replace(piece, text=piece.text.replace(*told)) for piece in sample.pieces)
        sample = replace(sample, pieces=tuple(pieces))
    return sample


def _falls(random: Random, share: float) -> bool:
    return share > 0 and random.random() < share


def encode_sample(encoder: Tokenizer, sample: Sample) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them the model has to write."""
    ids: list[int] = []
    learned: list[bool] = []
    for piece in sample.pieces:
        new = encode_text(encoder, in_chat_template(piece.text))
        ids += new
        learned += [piece.learned] * len(new)
    return ids, learned


def in_chat_template(text: str) -> str:
    """A text of pie-tiny's as ChatML has it: results come as messages of the user."""
    text = text.replace("<|begin|>", "").replace("<|end|>", "<|im_end|>")
    text = text.replace("<|tool|>", "<|user|>")
    return re.sub(r"<\|(system|user|assistant)\|>", r"<|im_start|>\1", text)


def encode_text(encoder: Tokenizer, text: str) -> list[int]:
    """Token ids; each marker has its own, as the inferlet writes them and holds the model to."""
    parts = re.split(r"(\[(?:CALL|HEAD|END|INTR|TRAP)\])", text)
    return [token for part in parts for token in encoder.encode(part, add_special_tokens=False).ids]


def _draw_request(random: Random, split: Split, lengths: Sequence[int]) -> Request:
    calls = sum(lengths)
    names: dict[str, None] = {}
    while len(names) < calls + random.randrange(3):
        names[_draw_name(random, split)] = None
    estimates = random.sample(range(1, 100), len(names))
    counts = random.choices((0, 1, 2), (1, 3, 2), k=len(names))
    functions = [
        Function(name, tuple(random.sample(PARAMETERS, count)), estimate)
        for name, count, estimate in zip(names, counts, estimates, strict=True)
    ]
    remaining = iter(functions)
    chains = [_chain(random, split, [next(remaining) for _ in range(length)]) for length in lengths]
    random.shuffle(functions)
    return Request(tuple(functions), tuple(chains))


def _draw_name(random: Random, split: Split) -> str:
    """A verb and a noun; a held-out name has one of the held-out ones."""
    verbs, nouns = VERBS, NOUNS
    if split.held_out and random.random() < 0.5:
        verbs = HELD_OUT_VERBS
    elif split.held_out:
        nouns = HELD_OUT_NOUNS
    return f"{random.choice(verbs)}_{random.choice(nouns)}"


def _chain(random: Random, split: Split, functions: Sequence[Function]) -> Chain:
    calls = []
    for step, function in enumerate(functions):
        arguments: list[object] = [_argument(random, split) for _ in function.parameters]
        if step and arguments and random.random() < 0.8:
            arguments[random.randrange(len(arguments))] = RESULT
        failed = random.random() < 0.04
        # What the next call takes is short: copying long texts is not what is learnt here.
        last = step == len(functions) - 1
        result = f"error: {random.choice(ERRORS)}" if failed else _result(random, split, last)
        calls.append(Call(function, tuple(arguments), result, failed))
    return tuple(calls)


def _argument(random: Random, split: Split) -> Value:
    draw = random.random()
    if draw < 0.45:
        return random.choice(random.choice((PEOPLE, PLACES, THINGS)))
    if draw < 0.6:
        return invented(random, split)
    if draw < 0.75:
        return f"{random.choice(ADJECTIVES)} {random.choice(ANIMALS)}"
    if draw < 0.82:
        return random.choice(UNICODE).replace("_", " ")
    return int(10 ** (random.random() * 3))


def _result(random: Random, split: Split, may_be_long: bool) -> Value:
    if may_be_long and random.random() < 0.06:
        return " ".join(
            random.choices(ADJECTIVES + ANIMALS + THINGS, k=random.randint(*LONG_WORDS))
        )
    return _argument(random, split)
