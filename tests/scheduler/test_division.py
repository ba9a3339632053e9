"""Long prompts in parts: nobody but the worker can tell, and those who decode do not wait for
them.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.fake_worker import distribution, embedded, run_forward
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate

PAGE = 8
FACTS: dict[str, Any] = {"kv_pages": 64, "embeds": 400, "max_batch_tokens": 100}


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

    def __init__(self, server: Server) -> None:
        self.guest = Guest(server)
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


def test_a_prompt_runs_in_parts_beside_steps_of_others() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder, other = Decoder(server), Decoder(server)
    prompt = Prompt(Guest(server), list(range(50)))
    for _ in range(4):
        decoder.step()
        other.step()
        server.step()
        assert decoder.is_right()
        assert other.is_right()
    assert forwards(server) == [(3, 16), (3, 16), (3, 16), (3, 10)]
    assert prompt.is_right()
    stats = server.scheduler.stats()
    assert (stats["parts"], stats["commands"]["forward"]) == (3, 12)


def test_without_steps_of_others_a_prompt_runs_at_once() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    first, second = Prompt(Guest(server), list(range(50))), Prompt(Guest(server), [1] * 40)
    server.drain()
    assert forwards(server) == [(2, 90)]
    assert first.is_right()
    assert second.is_right()


def test_prompts_get_on_whatever_number_of_steps_there_is() -> None:
    server = Server(prompt_tokens=8, **FACTS, max_batch_commands=100)
    decoders = [Decoder(server) for _ in range(20)]
    prompt = Prompt(Guest(server), list(range(6)))
    for _ in range(3):
        for decoder in decoders:
            decoder.step()
        server.step()
    assert forwards(server) == [(21, 22)] * 3
    assert prompt.is_right()


def test_prompts_are_served_in_their_order_and_by_priority() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder = Decoder(server)
    prompts = [Prompt(Guest(server), list(range(20))) for _ in range(3)]
    last = prompts[2].guest
    runtime.set_queue_priority(last.instance, last.queue, 1)
    ready = []
    for _ in range(5):
        decoder.step()
        server.step()
        assert decoder.is_right()
        ready.append([prompt.guest.ready(prompt.future) for prompt in prompts])
    assert ready[1] == [False, False, True]
    assert ready[2] == [True, False, True]
    assert ready[3] == [True, True, True]
    assert all(prompt.is_right() for prompt in prompts)


@pytest.mark.parametrize("how", ["mask", "observed", "positions", "nothing kept", "used page"])
def test_what_cannot_be_cut_runs_whole_as_soon_as_it_is_the_oldest(how: str) -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder, guest = Decoder(server), Guest(server)
    embeds, pages = guest.embeds(99), guest.pages(13)
    tokens = list(range(99))
    if how == "positions":
        guest.embed(tokens[:50], 49, [embeds[0], 50])
        guest.embed(tokens[50:], 0, [embeds[0] + 50, 49])
    else:
        guest.embed(tokens, 0, embeds)
    if how == "observed":
        guest.observe([], embeds, pages)
    elif how == "nothing kept":
        guest.forward([], embeds)
    elif how == "used page":
        before = guest.filled(3)
        guest.forward([], embeds, [*before, *pages])
    else:
        guest.forward([], embeds, pages, [], [1, 99] * 99 if how == "mask" else [])
    for _ in range(4):
        decoder.step()
        server.step()
    assert max(rows for _, rows in forwards(server)) >= 99
    assert guest.ready(guest.sync())


def test_what_comes_after_a_prompt_waits_for_all_of_it_in_other_queues_too() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder, guest = Decoder(server), Guest(server)
    beside = Guest(server, guest.instance)
    prompt = Prompt(guest, list(range(50)), before=3)
    embed = beside.embeds(2)
    beside.embed([7], 50, [embed[0], 1])
    beside.forward(prompt.pages, [embed[0], 1], [], [embed[0] + 1, 1])
    after = beside.dist(embed[0] + 1)
    # What is freed stays until all parts have gone.
    allocate.dealloc_kvpage(guest.instance, guest.queue, prompt.pages)
    allocate.dealloc_emb(guest.instance, guest.queue, prompt.embeds)
    free = server.service.pages.free
    for number in range(4):
        decoder.step()
        assert server.service.pages.free == free
        assert not beside.ready(after), number
        server.step()
    server.drain()
    assert server.service.pages.free > free
    assert prompt.is_right()
    assert beside.take(after) == distribution(value_after([*range(50), 7]), 3, 1000)


@pytest.mark.parametrize("ahead", [False, True])
def test_who_dies_between_two_parts_leaves_nothing(ahead: bool) -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder, guest = Decoder(server), Guest(server)
    Prompt(guest, list(range(50)))
    decoder.step()
    server.send()
    if not ahead:
        server.deliver()
    server.registry.kill(guest.instance, "test")
    heir = Guest(server)
    prompt = Prompt(heir, [5] * 60)
    while server.results:
        server.deliver()
    assert decoder.is_right()
    decoder.step()
    server.drain()
    assert decoder.is_right()
    assert prompt.is_right()
    for each in (decoder.guest, heir):
        assert each.instance.queued_commands == 0
        server.registry.kill(each.instance, "test")
    assert server.service.pages.free == server.facts.kv_pages
    assert server.service.embeds.free == server.facts.embeds


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_that_fails_fails_the_forward(part: int) -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder, guest = Decoder(server), Guest(server)
    prompt = Prompt(guest, list(range(40)))
    for number in range(3):
        decoder.step()
        server.worker.fail_kinds = {"forward"} if number == part else set()
        server.step()
    server.worker.fail_kinds = set()
    server.drain()
    with refused("failed-dependency"):
        guest.take(prompt.future)
    runtime.take(guest.instance, guest.sync())
    assert guest.instance.queued_commands == 0
    again = Prompt(guest, list(range(40)))
    server.drain()
    assert again.is_right()


def test_parts_do_not_count_against_the_limit_of_commands() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder, guest = Decoder(server), Guest(server, queued_commands=3)
    prompt = Prompt(guest, list(range(40)))  # three commands
    decoder.step()
    server.send()
    decoder.step()
    server.send()
    assert guest.instance.queued_commands == 3
    with refused("limit-exceeded"):
        guest.dist(prompt.embeds[0])
    server.deliver()
    assert guest.instance.queued_commands == 2  # the tokens have been embedded
    guest.dist(prompt.embeds[0])
    server.deliver()
    server.drain()
    assert guest.instance.queued_commands == 0
    assert prompt.is_right()


@settings(max_examples=80)
@given(
    budget=st.integers(1, 40),
    prompts=st.lists(
        st.tuples(st.integers(1, 99), st.integers(0, 20), st.integers(-1, 1)), max_size=4
    ),
    plans=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=12),
)
def test_whatever_is_cut_the_values_are_the_same(
    budget: int, prompts: list[tuple[int, int, int]], plans: list[tuple[int, bool]]
) -> None:
    server = Server(prompt_tokens=budget, **FACTS)
    decoders = [Decoder(server), Decoder(server)]
    texts = []
    for number, (length, before, priority) in enumerate(prompts):
        guest = Guest(server)
        runtime.set_queue_priority(guest.instance, guest.queue, priority)
        tokens = [number * 100 + place for place in range(length)]
        texts.append(Prompt(guest, tokens, before=min(before, length - 1)))
    for steps, wait in plans:
        for decoder in decoders[:steps]:
            if not decoder.future or decoder.guest.ready(decoder.future):
                if decoder.future:
                    assert decoder.is_right()
                decoder.step()
        if len(server.results) < 2:
            server.send()
        if wait:
            while server.results:
                server.deliver()
    while server.results:
        server.deliver()
    server.drain()
    assert all(text.is_right() for text in texts)
    for decoder in decoders:
        assert not decoder.future or decoder.is_right()
    assert server.scheduler.stats()["queued"] == 0


def test_a_forward_may_begin_in_a_page_that_holds_something_among_its_inputs() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder = Decoder(server)
    prompt = Prompt(Guest(server), list(range(45)), before=11)
    sizes = len(forwards(server))
    for _ in range(3):
        decoder.step()
        server.step()
    assert forwards(server)[sizes:] == [(2, 16), (2, 16), (2, 5)]
    assert prompt.is_right()


@pytest.mark.parametrize("steps", ["one queue's", "many queues'"])
def test_steps_that_fill_every_batch_do_not_keep_a_prompt_waiting(steps: str) -> None:
    """As many as a batch holds are always ready; the prompt is older than any."""
    server = Server(
        **{**FACTS, "prompt_tokens": 16, "max_batch_commands": 5, "max_batch_tokens": 24}
    )
    others = [Guest(server) for _ in range(1 if steps == "one queue's" else 6)]
    embeds = [guest.embeds(20) for guest in others]
    for guest, own in zip(others, embeds, strict=True):
        guest.embed(list(range(20)), 0, own)
    server.drain()
    prompt = Prompt(Guest(server), list(range(20)))
    for _ in range(20):
        for guest, own in zip(others, embeds, strict=True):
            for i in range(20 - guest.instance.queued_commands):
                guest.forward([], [own[0] + i % 20, 1], [], [])
        server.step()
    assert prompt.guest.ready(prompt.future)
    assert prompt.is_right()
