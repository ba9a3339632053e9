"""Long prompts, sequences that decode, and a worker that says how long it took."""

from __future__ import annotations

import numpy as np

from pie_py.wire.plan import Forward, ModelDescription, Plan, PlanResult
from support.fake_worker import FakeWorker, distribution, embedded, run_forward
from support.scheduler_fixtures import Guest, Server

PAGE = 8


def value_after(tokens: list[int]) -> int:
    """The last one's hidden state."""
    inputs = [(embedded(token), place) for place, token in enumerate(tokens)]
    return run_forward(inputs, [], [])[-1]


class Prompt:
    """A forward of many tokens, and the distribution after it."""

    def __init__(self, guest: Guest, tokens: list[int], before: int = 0) -> None:
        """`before` of the tokens are in the pages already."""
        self.guest, self.tokens = guest, tokens
        self.pages = guest.pages(-(-len(tokens) // PAGE))
        if before:
            self.run(0, before)
            guest.server.drain()
        self.embeds = self.run(before, len(tokens))
        self.future = guest.dist(self.embeds[0])

    def run(self, start: int, end: int) -> list[int]:
        guest = self.guest
        embeds = guest.embeds(end - start)
        guest.embed(self.tokens[start:end], start, embeds)
        guest.forward(self.pages, embeds, self.pages, [embeds[0], 1])
        return embeds

    def is_right(self) -> bool:
        return self.guest.take(self.future) == distribution(value_after(self.tokens), 3, 1000)


class Decoder:
    """Takes one step after the other."""

    def __init__(self, server: Server, user: str = "ann") -> None:
        self.guest = Guest(server, server.launch(user))
        self.tokens: list[int] = []
        self.pages = self.guest.pages(2)
        self.embed = self.guest.embeds(1)
        self.future = 0

    def step(self, token: int = 1) -> None:
        guest = self.guest
        guest.embed([token], len(self.tokens), self.embed)
        guest.forward(self.pages, self.embed, self.pages, self.embed)
        self.future = guest.dist(self.embed[0])
        self.tokens.append(token)

    def is_right(self) -> bool:
        return self.guest.take(self.future) == distribution(value_after(self.tokens), 3, 1000)


def forwards(server: Server) -> list[tuple[int, int]]:
    """Sequences and inputs of the forward batches so far."""
    return [(count, rows) for kind, count, rows in server.worker.sizes if kind == "forward"]


class Timed(FakeWorker):
    """Needs time for steps, and for an input of a prompt the more the longer its context is; with a
    mask many times as much.
    """

    def __init__(self, facts: ModelDescription) -> None:
        super().__init__(facts)
        self.steps = 4.0  # milliseconds
        self.took: list[float] = []  # milliseconds of each forward batch

    def run(self, plan: Plan) -> PlanResult:
        result = super().run(plan)
        for batch, answer in zip(plan.batches, result.results, strict=True):
            if isinstance(batch, Forward):
                self.took.append(self._milliseconds(batch))
                answer.nanoseconds = int(self.took[-1] * 1e6)
        return result

    def _milliseconds(self, batch: Forward) -> float:
        took = self.steps
        for row, count in enumerate(np.diff(batch.input_starts)):
            if count > 1:
                context = batch.page_used[slice(*batch.page_starts[row : row + 2])].sum()
                masked = batch.mask_starts[row + 1] > batch.mask_starts[row]
                took += (5 if masked else 1) * count * (0.05 + 0.0005 * context)
        return took
