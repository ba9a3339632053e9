"""Random programs through guests on a real server, against the plain model; two at a time.

`tests/scheduler/test_against_model.py` has more of them, without guests and processes.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from conformance.conformance_server import PROGRAMS, Place
from conformance.values import Reference
from support.plain_llama import Node, PlainLlama, causal

from pie_py.client.sync import Client, Instance

PAGES, EMBEDS, SIZE = 5, 12, 16
PATIENCE_SECONDS = 50.0


class Program:
    """Calls of one instance, carried out in its mind as they are made."""

    def __init__(self, seed: int, model: PlainLlama, first: list[int]) -> None:
        self.random = Random(seed)
        self.model = model
        *self.queues, self.page, self.embed = first
        self.calls: list[list[Any]] = []
        self.slots: list[list[tuple[Node, bool]]] = [[] for _ in range(PAGES)]  # and masked
        self.embeds: dict[int, tuple[torch.Tensor, int]] = {}
        self.expected: list[tuple[int, torch.Tensor]] = []  # number of the call that takes it

    def call(self, name: str, *arguments: Any) -> int:
        self.calls.append([name, list(arguments)])
        return len(self.calls) - 1

    def make(self, length: int) -> None:
        steps = [self.embed_txt, self.copy_emb, self.forward, self.forward, self.dist]
        steps += [self.copy, self.mask]
        self.embed_txt()
        for _ in range(length):
            self.random.choice(steps)()
        for i in range(PAGES):
            self.call("kvpage-used", self.queues[0], [self.page + i, 1])

    def embed_txt(self) -> None:
        count = self.random.randint(1, EMBEDS // 2)
        first = self.random.randrange(EMBEDS - count)
        tokens = [self.random.randrange(300) for _ in range(count)]
        place = self.random.randrange(100)
        queue = self.random.choice(self.queues)
        self.call("embed-txt", queue, tokens, [place, count], [self.embed + first, count])
        for i, token in enumerate(tokens):
            self.embeds[first + i] = (self.model.token(token), place + i)

    def copy_emb(self) -> None:
        count = self.random.randint(1, 3)
        sources = self.random.choices(sorted(self.embeds), k=count)
        targets = self.random.sample(range(EMBEDS), count)
        place = self.random.choice([None, self.random.randrange(100)])
        self.call(
            "copy-emb",
            self.random.choice(self.queues),
            [n for i in sources for n in (self.embed + i, 1)],
            [n for i in targets for n in (self.embed + i, 1)],
            [] if place is None else [place, count],
        )
        copied = [self.embeds[i] for i in sources]
        for i, (hidden, old) in enumerate(copied):
            self.embeds[targets[i]] = (hidden, old if place is None else place + i)

    def forward(self) -> None:
        inputs = self.random.sample(sorted(self.embeds), min(len(self.embeds), 4))
        pages = self.random.sample(range(PAGES), self.random.randint(0, 3))
        room = [i for i in range(PAGES) if len(self.slots[i]) + len(inputs) <= SIZE]
        kept = self.random.choice(room) if room and self.random.random() < 0.8 else None
        outputs = self.random.sample(range(EMBEDS), 1)
        past = [slot for page in pages for slot in self.slots[page]]
        pairs = [self.embeds[i] for i in inputs]
        visible = causal([place for _, place in pairs], len(past))
        mask: list[int] = []
        if self.random.random() < 0.3:
            visible = [[self.random.random() < 0.6 for _ in row] for row in visible]
            for row in visible:
                mask += [2 * len(row), *[n for seen in row for n in ((0, 1) if seen else (1, 0))]]
        spans = [n for page in pages for n in (self.page + page, 1)]
        self.call(
            "forward",
            self.random.choice(self.queues),
            spans,
            [n for i in inputs for n in (self.embed + i, 1)],
            [] if kept is None else [self.page + kept, 1],
            [self.embed + outputs[0], 1],
            mask,
        )
        shown = [
            [seen and not (j < len(past) and past[j][1]) for j, seen in enumerate(row)]
            for row in visible
        ]
        nodes, _ = self.model.forward(pairs, [node for node, _ in past], shown)
        if kept is not None:
            self.slots[kept] += [(node, False) for node in nodes]
        self.embeds[outputs[0]] = (nodes[-1].hidden, pairs[-1][1])

    def dist(self) -> None:
        embed = self.random.choice(sorted(self.embeds))
        queue = self.random.choice(self.queues)
        future = Reference(self.call("get-next-dist", queue, self.embed + embed, 100)).json()
        self.call("wait", [future])
        shares = self.model.probabilities(self.embeds[embed][0])
        self.expected.append((self.call("take-dist", future), shares))

    def copy(self) -> None:
        full = [i for i in range(PAGES) if self.slots[i]]
        if not full:
            return
        source, target = self.random.choice(full), self.random.randrange(PAGES)
        start = self.random.randrange(len(self.slots[source]))
        to = self.random.randint(0, len(self.slots[target]))
        count = min(self.random.randint(1, 6), len(self.slots[source]) - start, SIZE - to)
        if count:
            where = (self.page + source, start, self.page + target, to, count)
            self.call("copy-kvpage", self.random.choice(self.queues), *where)
            copied = self.slots[source][start : start + count]
            self.slots[target][to : to + count] = copied

    def mask(self) -> None:
        page = self.random.randrange(PAGES)
        word = self.random.getrandbits(len(self.slots[page])) if self.slots[page] else 0
        self.call("mask-kvpage", self.random.choice(self.queues), [self.page + page, 1], [word])
        self.slots[page] = [
            (node, bool(word >> i & 1)) for i, (node, _) in enumerate(self.slots[page])
        ]

    def check(self, outcomes: list[dict[str, Any]]) -> None:
        errors = [(c, o) for c, o in zip(self.calls, outcomes, strict=True) if "error" in o]
        assert errors == []
        used = [outcome["ok"] for outcome in outcomes[-PAGES:]]
        assert used == [[len(slots)] for slots in self.slots]
        for number, wanted in self.expected:
            tokens, shares = outcomes[number]["ok"]
            found = torch.tensor(shares, dtype=torch.float64)
            torch.testing.assert_close(found, wanted[tokens], atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def model(place: Place) -> PlainLlama:
    with place.server.client() as client:
        folder = client.models()[0]["folder"]
    return PlainLlama(Path(folder))


def perform(instance: Instance, calls: list[list[Any]]) -> None:
    instance.send(json.dumps(calls))


def outcomes_of(client: Client, instance: Instance, calls: list[list[Any]]) -> list[dict[str, Any]]:
    try:
        answer = instance.receive(PATIENCE_SECONDS)
    except TimeoutError:
        raise AssertionError(
            f"{instance.id} has not answered {calls} in {PATIENCE_SECONDS} s;"
            f" instances: {client.instances()}; pools and queues: {client.stats()}"
        ) from None
    assert isinstance(answer, str), instance.result(PATIENCE_SECONDS)
    outcomes: list[dict[str, Any]] = json.loads(answer)
    return outcomes


START: list[list[Any]] = [
    ["create-queue", ["test"]],
    ["create-queue", ["test"]],
    ["alloc-kvpage", [Reference(0).json(), PAGES]],
    ["alloc-emb", [Reference(0).json(), EMBEDS]],
]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(12))
def test_two_programs_at_once(place: Place, model: PlainLlama, seed: int) -> None:
    torch.set_num_threads(1)
    with place.server.client() as client, ExitStack() as ends:
        instances = []
        for language, path in PROGRAMS.items():
            program = client.upload(path(), name=f"interpreter-{language}")
            instances.append(client.launch(program, ["serve", "random"]))
            # One that is left would keep its pages for a minute, for which others would wait.
            ends.callback(instances[-1].cancel)
        programs = []
        for number, instance in enumerate(instances):
            perform(instance, START)
            first = [outcome["ok"] for outcome in outcomes_of(client, instance, START)]
            made = Program(2 * seed + number, model, first)
            made.make(24)
            programs.append(made)
        for instance, made in zip(instances, programs, strict=True):
            perform(instance, made.calls)
        for instance, made in zip(instances, programs, strict=True):
            made.check(outcomes_of(client, instance, made.calls))
            instance.send("")
            assert instance.result(PATIENCE_SECONDS) == "done"
