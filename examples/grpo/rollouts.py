"""The rollouts: they run beside the model, and are scored there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferlet import Context, Model, Sampler, gather

EXAMPLE = "The larger of 3 and 8 is 8.\n"
LONGEST = 5  # tokens of an answer


@dataclass
class Sample:
    """An answer.

    Attributes:
        tokens: of the answer alone.
        logprobs: of each, in nats, under the adapter that has chosen it.
        reward: 0 or 1.
    """

    tokens: list[int]
    logprobs: list[float]
    reward: float


@dataclass
class Group:
    """The answers to one question, and which adapter gave them.

    Attributes:
        prompt: tokens of the question.
        samples: its answers.
        version: of the adapter, as `upload_adapter` returns it; empty for the model alone.
    """

    prompt: list[int]
    samples: list[Sample]
    version: str


def reward(answer: str, numbers: tuple[int, int]) -> float:
    """1 for the larger number, else 0."""
    found = re.match(r" (\d+)", answer)
    return float(found is not None and int(found[1]) == max(numbers))


async def rollouts(
    questions: list[tuple[int, int]], samples: int, seed: int, adapter: str | None
) -> list[Group]:
    """So many answers to each question; a question's prompt is read once for all of them."""
    model = Model.load()

    async def group(place: int, numbers: tuple[int, int]) -> Group:
        question = "The larger of {} and {} is".format(*numbers)
        with Context(model, adapter=adapter).fill(EXAMPLE + question) as base:
            await base.flush()
            first = seed + place * samples
            answers = await gather(*[answer(base, numbers, first + i) for i in range(samples)])
            return Group(base.tokens, answers, base.weights_version)

    async def answer(base: Context, numbers: tuple[int, int], own_seed: int) -> Sample:
        with base.fork() as context:
            sampler = Sampler(temperature=1.0, seed=own_seed)
            generation = context.generate(sampler, max_tokens=LONGEST, stop=[".", "\n"])
            tokens, logprobs = await generation.collect_tokens(logprobs=True)
            return Sample(tokens, logprobs, reward(model.tokenizer.decode(tokens), numbers))

    return await gather(*[group(place, each) for place, each in enumerate(questions)])
