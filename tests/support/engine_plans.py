"""Plans for a worker's engine: forwards of short texts, samplers of every kind, steps of a
decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from inferlet import Sampler, device
from inferlet import samplers as rules
from inferlet.device import ProgramSampler, State, Tensor
from pie_inference.serving.engine import Engine
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import (
    Batch,
    BatchResult,
    EmbedSampled,
    EmbedText,
    Plan,
    PlanResult,
    Sample,
    SetSampler,
)
from support.model_rig import forward_of, ints, offsets, sample_of, tokens_of
from support.programs_read import set_samplers

NONE = ints([])
VOCABULARY = 512
BUILT_IN = 5  # of `samplers`: the first ones, which the worker has a kernel for


@device.program
def odd_order(logits: Tensor, state: State) -> Tensor:
    """Rules in an order that no `Sampler` has."""
    logits = rules.presence_penalty(logits, 0.2) / 0.7
    logits = rules.min_p(rules.top_p(rules.top_k(logits, 60), 0.95), 0.001)
    return device.draw(rules.logit_bias(logits, state.tokens, state.values))


_PENALIZED = Sampler(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1)


def engine_of(folder: Path, **config: Any) -> Engine:
    """An engine with one model, called `m`."""
    sizes = {"name": "m", "kv_pages": 64, "host_pages": 32, "embeds": 2048}
    return Engine([ModelConfig.model_validate({"source": str(folder), **sizes, **config})])


def landed(engine: Engine, plan: Plan) -> list[BatchResult]:
    flight = engine.start(plan)
    assert not isinstance(flight, PlanResult)
    results: list[BatchResult] = []
    while True:
        while flight.has_more:
            engine.go_on(flight)
        part = flight.take(wait=True)
        if part is not None:
            results += part.results
            if part.last:
                return results


def forward(
    first: int, count: int, page: int, *, output: int, used: int = 0, **options: Any
) -> list[Batch]:
    """Tokens of one sequence into pages of its own from `page` on; their embeds are from 0 on."""
    pages = -(-used // 16)
    slots = page * 16 + used + np.arange(count)
    held = [16] * pages
    if pages:
        held[-1] = used - 16 * (pages - 1)
    run: dict[str, Any] = {
        "page_starts": [0, pages],
        "pages": range(page, page + pages),
        "page_used": held,
        "has_masked": [1],
        **options,
    }
    embed = EmbedText(
        ints(tokens_of(count, seed=first)), ints(range(used, used + count)), ints(range(count))
    )
    return [embed, forward_of([count], slots, [[output]], **run)]


def samplers(count: int, top_p: float = 0.7) -> SetSampler:
    """Eight or more, of every kind: greedy, free, top-k, top-p, min-p, and device programs."""
    kinds: dict[int, Sampler | ProgramSampler] = {
        0: Sampler(temperature=0.0),
        2: Sampler(top_k=5),
        3: Sampler(top_p=top_p),
        4: Sampler(min_p=0.1),
        5: _PENALIZED,
        6: Sampler(logit_bias={9: 50.0, 11: 49.0}),
        7: odd_order(tokens=[9], values=[5.0]),
    }
    return set_samplers(
        [kinds.get(i, Sampler()) for i in range(count)],
        VOCABULARY,
        seeds=np.arange(2 * count).reshape(count, 2),
        rows=[{5: 0, 7: 1}.get(i, -1) for i in range(count)],
    )


def sample(count: int, step: int, embed: int) -> Sample:
    masks = np.zeros((1, -(-VOCABULARY // 32)), np.uint32)
    masks[0, 1] = 0b1100
    top, masked = [3] + [0] * (count - 1), [-1] * (count - 1) + [0]
    return sample_of([embed] * count, range(count), step, top, masked, masks)


def begin(engine: Engine, chosen: SetSampler) -> None:
    """Three prompts of 40 tokens, samplers for them, and the first token of each."""
    for s in range(3):
        landed(engine, Plan(s, "m", forward(s, 40, 8 * s, output=1000 + s)))
    first = sample_of([1000, 1001, 1002], [0, 1, 2])
    landed(engine, Plan(4, "m", [chosen, first]))


def decoding(turns: int) -> Iterator[list[Batch]]:
    """Steps whose tokens the host never tells."""
    for step in range(turns):
        used = 40 + step
        pages = -(-used // 16)
        yield [
            EmbedSampled(ints([0, 1, 2]), ints([used] * 3), ints([0, 1, 2])),
            forward_of(
                [1] * 3,
                [128 * s + used for s in range(3)],
                [[0], [1], [2]],
                page_starts=offsets([pages] * 3),
                pages=[p for s in range(3) for p in range(8 * s, 8 * s + pages)],
                page_used=[min(16, used - 16 * i) for _ in range(3) for i in range(pages)],
            ),
            sample_of([0, 1, 2], [0, 1, 2], step + 1),
        ]
