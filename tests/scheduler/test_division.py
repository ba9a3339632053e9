"""Long prompts in parts: nobody but the worker can tell, and those who decode do not wait for
them.
"""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.fake_worker import Slot, attention, distribution, embedded, rows_of, run_forward
from support.instances import take
from support.prompts import PAGE, Decoder, Prompt, forwards, value_after
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate
from pie_control.errors import ApiError
from pie_py.config.scheduling import SchedulerConfig

FACTS: dict[str, Any] = {"kv_pages": 64, "embeds": 400, "max_batch_tokens": 100}


@pytest.fixture
def server() -> Server:
    return Server(prompt_tokens=16, **FACTS)


def test_a_prompt_runs_in_parts_beside_steps_of_others(server: Server) -> None:
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


def test_without_steps_of_others_a_prompt_runs_at_once(server: Server) -> None:
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


def test_prompts_are_served_in_their_order_and_by_priority(server: Server) -> None:
    decoder = Decoder(server)
    prompts = [Prompt(Guest(server), list(range(20))) for _ in range(3)]
    last = prompts[2].guest
    runtime.set_queue_priority(*last.at, 1)
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


def run_whole(guest: Guest, how: str, count: int) -> None:
    """Queues a forward that can't be cut."""
    embeds, pages = guest.embeds(count), guest.pages(-(-count // PAGE))
    tokens = list(range(count))
    if how == "positions":
        guest.embed(tokens[1:], 1, [embeds[0], count - 1])
        guest.embed(tokens[:1], 0, [embeds[0] + count - 1, 1])
    else:
        guest.embed(tokens, 0, embeds)
    if how == "observed":
        guest.observe([], embeds, pages, observed=count)
    elif how == "nothing kept":
        guest.forward([], embeds)
    elif how == "used page":
        before = guest.filled(3)
        guest.forward([], embeds, [*before, *pages])
    else:
        guest.forward([], embeds, pages, [], [2, 0, count] * count if how == "mask" else [])


WHOLE = ["mask", "observed", "positions", "nothing kept", "used page"]


@pytest.mark.parametrize("how", WHOLE)
def test_what_cannot_be_cut_runs_whole_as_soon_as_it_is_the_oldest(how: str) -> None:
    server = Server(prompt_tokens=80, **FACTS)
    decoders, guest = [Decoder(server) for _ in range(3)], Guest(server)
    run_whole(guest, how, 80)
    other = Prompt(Guest(server), list(range(90)))
    for _ in range(4):
        for decoder in decoders:
            decoder.step()
        server.step()
    sizes = [rows for _, rows in forwards(server)]
    assert 80 <= max(sizes) <= 83, "it goes at once, and takes no other prompt along"
    assert guest.ready(guest.sync())
    server.drain()
    assert other.is_right()


@pytest.mark.parametrize("how", WHOLE)
def test_what_cannot_be_cut_may_not_be_long(server: Server, how: str) -> None:
    guest = Guest(server)
    with pytest.raises(ApiError, match=r"limit-exceeded: 17 inputs .* only run at once, 16 at"):
        run_whole(guest, how, 17)
    run_whole(guest, how, 16)
    server.drain()
    take(guest.instance, guest.sync())


def test_fewer_may_run_at_once_over_many_keys() -> None:
    """A table: inputs that may have to run at once, by the keys that they look at."""
    table = {1: 512, 4096: 512, 8192: 256, 65536: 32, 1 << 20: 16}
    assert {keys: SchedulerConfig(prompt_tokens=512).most_at_once(keys) for keys in table} == table
    assert SchedulerConfig(prompt_tokens=None).most_at_once(1 << 20) > 1 << 20


def lengths_of(rows: list[list[bool]]) -> list[int]:
    """Rows in the contract's run-length form."""
    flat = []
    for row in rows:
        changes = [0, *(i for i in range(1, len(row)) if row[i] != row[i - 1]), len(row)]
        runs = [b - a for a, b in itertools.pairwise(changes)]
        runs = [0, *runs] if row[0] else runs
        flat += [len(runs), *runs]
    assert rows_of(flat) == rows
    return flat


def masked(server: Server, before: int, rows: list[list[bool]], outputs: int) -> list[int]:
    """Runs a forward with a mask behind a text beside a decoder; what the last inputs become."""
    decoder, guest = Decoder(server), Guest(server)
    count = len(rows)
    pages = guest.pages(-(-(before + count) // PAGE))
    inputs = guest.embeds(before + count)
    guest.embed(list(range(before + count)), 0, inputs)
    if before:
        guest.forward(pages, [inputs[0], before], pages)
        server.drain()
    given = [inputs[0] + before, count]
    last = [inputs[0] + before + count - outputs, outputs]
    guest.forward(pages, given, pages, last, lengths_of(rows))
    futures = [guest.dist(last[0] + i) for i in range(outputs)]
    while not all(map(guest.ready, futures)):
        decoder.step()
        server.step()
        assert decoder.is_right()
        if len(decoder.tokens) == 2 * PAGE:
            decoder = Decoder(server)
    return [guest.take(future)[0] for future in futures]


def expected(before: int, rows: list[list[bool]], outputs: int) -> list[int]:
    """The same, at once."""
    texts = [(embedded(token), token) for token in range(before + len(rows))]
    context = run_forward(texts[:before], [], []) if before else []
    slots = [Slot(value, place) for place, value in enumerate(context)]
    found = run_forward(texts[before:], slots, lengths_of(rows))
    return [distribution(value, 1, 1000)[0] for value in found[len(rows) - outputs :]]


@pytest.mark.parametrize("before", [0, 3, 8])
@pytest.mark.parametrize("outputs", [1, 40])
@pytest.mark.parametrize("how", ["causal", "window", "blocks"])
def test_a_mask_is_cut_where_no_input_sees_a_later_one(how: str, outputs: int, before: int) -> None:
    count = 40
    columns = range(before + count)
    rows = []
    for row in range(before, before + count):
        block = row - (row - before) % 10  # inputs of a block see all of it
        last = block + 9 if how == "blocks" else row
        rows.append([(how != "window" or at > row - 6) and at <= last for at in columns])
    server = Server(prompt_tokens=16, **FACTS, max_batch_commands=64)
    assert masked(server, before, rows, outputs) == expected(before, rows, outputs)
    assert max(rows for _, rows in forwards(server)[1:]) <= 16
    assert server.scheduler.stats()["parts"] >= 2


@settings(max_examples=80)
@given(st.data())
def test_whatever_a_mask_shows_the_values_are_the_same(data: st.DataObject) -> None:
    before, count = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 30))
    block = data.draw(st.integers(1, 4))  # inputs of one may see all of it
    rows = []
    for row in range(count):
        last = row - row % block + block - 1
        shown = data.draw(st.lists(st.booleans(), min_size=before + count, max_size=before + count))
        rows.append([seen and at <= before + last for at, seen in enumerate(shown)])
    tokens = data.draw(st.integers(block, 40))
    server = Server(prompt_tokens=tokens, **FACTS, max_batch_commands=64)
    outputs = data.draw(st.integers(1, count))
    assert masked(server, before, rows, outputs) == expected(before, rows, outputs)


def test_an_observed_forward_is_cut_before_the_inputs_that_are_observed(server: Server) -> None:
    decoder, guest = Decoder(server), Guest(server)
    embeds, pages = guest.embeds(50), guest.pages(7)
    guest.embed(list(range(50)), 0, embeds)
    future = guest.observe(pages, embeds, pages, observed=5)
    for _ in range(5):
        decoder.step()
        server.step()
    assert max(rows for _, rows in forwards(server)) == 16
    assert guest.take_attention(future) == (1, attention(50, 5, 1))


def test_what_comes_after_a_prompt_waits_for_all_of_it_in_other_queues_too(server: Server) -> None:
    decoder, guest = Decoder(server), Guest(server)
    beside = Guest(server, guest.instance)
    prompt = Prompt(guest, list(range(50)), before=3)
    embed = beside.embeds(2)
    beside.embed([7], 50, [embed[0], 1])
    beside.forward(prompt.pages, [embed[0], 1], [], [embed[0] + 1, 1])
    after = beside.dist(embed[0] + 1)
    # What is freed stays until all parts have gone.
    allocate.dealloc_kvpage(*guest.at, prompt.pages)
    allocate.dealloc_emb(*guest.at, prompt.embeds)
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


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_that_fails_fails_the_forward(server: Server, part: int) -> None:
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
    take(guest.instance, guest.sync())
    assert guest.instance.queued_commands == 0
    again = Prompt(guest, list(range(40)))
    server.drain()
    assert again.is_right()


def test_parts_do_not_count_against_the_limit_of_commands(server: Server) -> None:
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
        runtime.set_queue_priority(*guest.at, priority)
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
