"""Samplers, samples and truncated pages at the scheduler: errors, order, masks that come late."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.fake_worker import Sampler, program_facts
from support.instances import failure, take
from support.programs_read import bound_by, create_sampler
from support.scheduler_fixtures import Guest, Server, refused

import inferlet
from inferlet import device
from pie_control.api import allocate, sample, text
from pie_control.api.device_programs import read_parameters
from pie_control.api.sample import enqueue_sample
from pie_control.errors import ApiError
from pie_control.instances.futures import FutureKind
from pie_control.scheduler.commands.sample import TokenMask
from pie_py.device_programs.bound import Bound
from pie_py.wire.plan import Sample, SetSampler

PENALIZED = inferlet.Sampler(presence_penalty=1).to_json()  # it remembers tokens


def ready_guest(server: Server, tokens: int = 3) -> tuple[Guest, list[int], int]:
    """A guest whose embed holds the hidden state after some tokens, its pages and that embed."""
    guest = Guest(server)
    pages = guest.pages(2)
    embeds = guest.embeds(tokens)
    guest.embed(list(range(tokens)), 0, embeds)
    guest.forward(pages, embeds, pages, [embeds[0], 1])
    return guest, pages, embeds[0]


def masked(guest: Guest, embed: int, mask: TokenMask | None, told: Any = None) -> int:
    """A choice of a new sampler, with a mask that may come late."""
    target = guest.instance.queues[guest.queue]
    return enqueue_sample(guest.instance, target, embed, guest.sampler(), mask, told)


def batches(server: Server) -> list[tuple[str, int]]:
    sizes = [(kind, commands) for kind, commands, _ in server.worker.sizes]
    server.worker.sizes.clear()
    return sizes


def test_limits_of_an_instance_and_of_the_model(server: Server) -> None:
    guest = Guest(server, samplers=3)
    for _ in range(3):
        guest.sampler()
    with refused("limit-exceeded"):
        guest.sampler()
    other = Guest(server)
    for _ in range(5):
        other.sampler(PENALIZED)
    with refused("out-of-resources"):
        other.sampler()  # of eight, all are in use
    server.drain()
    server.registry.kill(other.instance, "test")
    third = Guest(server)
    for _ in range(5):
        third.sampler()
    with refused("out-of-resources"):
        third.sampler()


@device.program
def argmax(logits: device.Tensor) -> device.Tensor:
    return logits.argmax()


@device.program
def counting(logits: device.Tensor, state: device.State) -> device.Tensor:
    state.chosen = state.chosen + 1
    return logits.argmax()


def test_an_operator_bounds_what_is_seen_of_a_distribution() -> None:
    guest = Guest(Server(), distribution=3)
    embeds = guest.embeds(2)
    guest.embed([1, 2], 0, embeds)
    guest.forward([], embeds, guest.pages(1), [embeds[0], 1])
    greedy = argmax()
    state = guest.sampler(greedy.to_json())
    looks: list[Callable[[], Any]] = [
        lambda: guest.dist(embeds[0], 4),
        lambda: guest.sampler('{"logprobs": 4}'),
        lambda: guest.sampler(replace(greedy, logprobs=4).to_json()),
        lambda: text.get_hidden(*guest.at, embeds),
        lambda: sample.read_state(*guest.at, state),
    ]
    for look in looks:
        with refused("limit-exceeded"):
            look()
    token = guest.sample(embeds[0], guest.sampler('{"logprobs": 3}'))
    likely = guest.dist(embeds[0], 3)
    counted = guest.sampler(counting(chosen=0).to_json())
    sample.write_state(*guest.at, counted, '{"chosen": 7}')  # which shows nothing
    guest.server.drain()
    assert ("write_state", 1) in batches(guest.server)
    assert len(guest.take(likely)) == 3
    guest.take_sample(token)


def test_rows_of_counts_run_out_before_samplers_do() -> None:
    server = Server(count_rows=1)
    guest = Guest(server)
    first = guest.sampler(PENALIZED)
    with pytest.raises(ApiError, match=r"^out-of-resources: .*penalties"):
        guest.sampler(PENALIZED)
    guest.sampler()
    sample.destroy_sampler(*guest.at, first)
    server.drain()
    guest.sampler(PENALIZED)


def test_samples_of_several_are_one_batch_and_of_one_sampler_are_not() -> None:
    server = Server(max_batch_commands=100)
    futures = []
    for _ in range(3):
        guest, _, embed = ready_guest(server)
        samplers = [guest.sampler(), guest.sampler()]
        futures += [(guest, guest.sample(embed, one)) for one in (*samplers, samplers[0])]
    server.drain()
    sizes = batches(server)
    assert [commands for kind, commands in sizes if kind == "sample"] == [6, 3]
    for guest, future in futures:
        assert guest.ready(future)
        guest.take_sample(future)


def test_a_mask_that_comes_late_holds_back_that_sample_alone(server: Server) -> None:
    guest, pages, embed = ready_guest(server)
    neighbour, _, beside = ready_guest(server)
    notified = []
    mask = TokenMask(notify=lambda: notified.append(True))
    told: list[object] = []
    future = masked(guest, embed, mask, told.append)
    after = guest.dist(embed)
    free = neighbour.sample(beside, neighbour.sampler())
    server.drain()
    assert neighbour.ready(free)
    assert guest.used(pages) == [3, 0]  # its forward has run
    assert not guest.ready(future)
    assert not guest.ready(after)
    assert not notified
    words = np.zeros(32, np.uint32)
    words[2] = 1 << 5
    mask.finish(words)
    assert notified == [True]
    server.drain()
    assert guest.take_sample(future) == 2 * 32 + 5
    assert told == [69]
    guest.take(after)


def test_a_mask_that_is_there_in_time_notifies_nobody(server: Server) -> None:
    guest, _, embed = ready_guest(server)
    mask = TokenMask(notify=lambda: pytest.fail("nobody waits"))
    future = masked(guest, embed, mask)
    mask.finish(np.full(32, 1, np.uint32))
    server.drain()
    assert guest.take_sample(future) % 32 == 0


def test_nothing_left_to_choose_fails_what_follows_and_nobody_else() -> None:
    server = Server(max_batch_commands=100)
    guest, pages, embed = ready_guest(server)
    neighbour, _, beside = ready_guest(server)
    sampler, other = guest.sampler(), neighbour.sampler()
    nothing = np.zeros(32, np.uint32)
    future = sample.sample_masked(*guest.at, embed, sampler, nothing)
    fine = neighbour.sample(beside, other)
    guest.embed_sampled(sampler, 3, embed)
    neighbour.embed_sampled(other, 3, beside)
    guest.forward(pages, [embed, 1], pages, [embed, 1])
    after = guest.sample(embed, sampler)
    mark = guest.sync()
    last = neighbour.dist(beside)
    server.drain()
    neighbour.take_sample(fine)
    neighbour.take(last)
    with refused("invalid-argument"):
        guest.take_sample(future)
    with refused("failed-dependency"):
        guest.take_sample(after)
    take(guest.instance, mark)  # reported already
    again = guest.sample(embed, sampler)
    server.drain()
    guest.take_sample(again)


def test_a_masks_error_is_the_samples_error(server: Server) -> None:
    guest, _, embed = ready_guest(server)
    mask = TokenMask()
    mask.finish(np.zeros(32, np.uint32), "the grammar: too complex")
    told: list[object] = []
    future = masked(guest, embed, mask, told.append)
    server.drain()
    with pytest.raises(ApiError, match=r"^limit-exceeded: the grammar: too complex"):
        guest.take_sample(future)
    assert told == [None]


@pytest.mark.parametrize("lost", [False, True])
def test_a_batch_that_fails_tells_everybody(server: Server, lost: bool) -> None:
    guest, _, embed = ready_guest(server)
    server.drain()
    told: list[object] = []
    future = masked(guest, embed, None, told.append)
    if lost:
        server.scheduler.fail_all("the worker died")
    else:
        server.worker.fail_kinds.add("sample")
        server.drain()
    with refused("worker-lost" if lost else "internal"):
        guest.take_sample(future)
    assert told == [None]


def test_seeds_are_the_guests_or_differ(server: Server, guest: Guest) -> None:
    for parameters in ("", "", '{"seed": 9}', '{"seed": 9}'):
        guest.sampler(parameters)
    server.drain()
    seeds = [sampler.facts[0] for sampler in server.worker.samplers.values()]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [9, 9]
    assert all(isinstance(sampler, Sampler) for sampler in server.worker.samplers.values())


def test_programs_with_their_values_reach_the_worker(server: Server, guest: Guest) -> None:
    kinds = [
        biased({7: None, 9: -1.5}),
        inferlet.Sampler(temperature=0.5, top_k=4, top_p=0.75, min_p=0.25),
    ]
    for one in kinds:
        guest.sampler(one.to_json())
    server.drain()
    found = [sampler.facts[1] for sampler in server.worker.samplers.values()]
    assert found == [program_facts(bound(one)) for one in kinds]
    assert found[0] != program_facts(bound(biased({7: None, 9: 1.5})))


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("logit_bias", {7: 1.0, 999_999: 1.0}),
        ("allowed_tokens", [999_999]),
        ("banned_sequences", [[7], [8, 999_999]]),
        ("end_tokens", [999_999]),
        ("dry_sequence_breakers", [999_999]),
    ],
)
def test_ids_beyond_the_vocabulary_are_named(guest: Guest, field: str, given: Any) -> None:
    fields: dict[str, Any] = {"min_tokens": 1, "dry_multiplier": 1, field: given}
    with failure("invalid-argument", f"{field}: ", "is outside the vocabulary (0 to "):
        guest.sampler(inferlet.Sampler(**fields).to_json())
    guest.sampler(inferlet.Sampler(banned_sequences=[[7], [8, 9]]).to_json())


def biased(biases: dict[int, float | None]) -> inferlet.Sampler:
    return inferlet.Sampler(logit_bias=biases)


def bound(sampler: inferlet.Sampler) -> Bound:
    return bound_by(sampler, 1000)


def test_a_sampler_that_is_destroyed_keeps_its_program_for_what_was_queued(server: Server) -> None:
    """Another one's `SetSampler` goes first in the plan that has the last choice."""
    guest, _, embed = ready_guest(server)
    handle = guest.sampler(biased({7: 2.0}).to_json())
    server.drain()
    (slot,) = server.worker.samplers
    sample.sample(*guest.at, embed, handle)
    sample.destroy_sampler(*guest.at, handle)
    Guest(server).sampler(biased({8: 2.0}).to_json())
    plan = server.scheduler.next_plan()
    assert plan is not None
    (choice,) = [batch for batch in plan.batches if isinstance(batch, Sample)]
    (made,) = [batch for batch in plan.batches if isinstance(batch, SetSampler)]
    assert choice.samplers.tolist() == [slot]
    assert slot not in made.freed


# Truncated pages


def test_batches_of_fed_tokens_are_bounded(server: Server, guest: Guest) -> None:
    samplers = [guest.sampler(PENALIZED) for _ in range(4)]
    server.drain()
    batches(server)
    for handle, count in zip(samplers, (20, 4, 1, 100), strict=True):  # 24 tokens a batch
        sample.feed_sampler(*guest.at, handle, list(range(count)), True)
    server.drain()
    assert batches(server) == [("feed_sampler", 2), ("feed_sampler", 1), ("feed_sampler", 1)]


def test_a_step_is_queued_as_a_whole_or_not_at_all() -> None:
    """Whatever limit it meets, no part of it is left behind; without one it is the three calls."""
    tokens = []
    for whole in (False, True):
        server = Server()
        guest, pages, embed = ready_guest(server)
        sampler = guest.sampler('{"seed": 5}')
        futures = [guest.sample(embed, sampler)]
        limits = guest.instance.limits
        queued = guest.instance.queued_commands
        args = (sampler, 3, embed, [pages[0], 1], pages[0], "")
        for field, value in (("queued_commands", queued + 2), ("futures", 1)):
            guest.instance.limits = limits.model_copy(update={field: value})
            guest.instance.futures._limits = guest.instance.limits
            with refused("limit-exceeded"):
                sample.step(guest.instance, guest.queue, *args)
            assert guest.instance.queued_commands == queued
            assert allocate.kvpage_used(*guest.at, [pages[0], 1]).tolist() == [3]
        guest.instance.limits = limits
        guest.instance.futures._limits = limits
        if whole:
            futures.append(sample.step(guest.instance, guest.queue, *args))
        else:
            guest.embed_sampled(sampler, 3, embed)
            guest.forward([pages[0], 1], [embed, 1], [pages[0], 1], [embed, 1])
            futures.append(guest.sample(embed, sampler))
        server.drain()
        tokens.append([guest.take_sample(future) for future in futures])
        assert allocate.kvpage_used(*guest.at, [pages[0], 1]).tolist() == [4]
    assert tokens[0] == tokens[1]


# Texts of samplers that were read before


def test_a_text_read_again_stands_for_the_same() -> None:
    text = json.dumps({"temperature": 0.5, "top_k": 3})
    first, again = read_parameters(text), read_parameters(text)
    assert first == again
    assert first.program.values == {"temperature": 0.5, "top_k": 3}
    assert read_parameters(text + " " * 4096) == first
    assert read_parameters("") == read_parameters("{}")
    most = read_parameters('{"top_k": 2147483647, "top_p": 0}').program
    assert most.values == {"top_k": 2147483647, "top_p": 0.0}
    with pytest.raises(ApiError, match="2097152 at most"):
        read_parameters(text + " " * 2**21)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"temperature": NaN}', "temperature"),
        ('{"temperature": Infinity}', "temperature"),
        ('{"temperature": -1}', "temperature"),
        ('{"top_p": 1.5}', "top_p"),
        ('{"top_k": -1}', "top_k"),
        ('{"top_k": 1.5}', "top_k"),
        ('{"min_p": "a"}', "min_p"),
        ('{"seed": 18446744073709551616}', "seed"),
        ('{"seed": -1}', "seed"),
        ('{"logprobs": 257}', "logprobs"),
        ('{"temprature": 1}', "temprature"),
        ('{"presence_penalty": "a"}', "presence_penalty"),
        ('{"repetition_penalty": 0}', "repetition_penalty is 0; it is a number, 1e-09 to 10000"),
        ('{"logit_bias": {"x": 1}}', "logit_bias"),
        (f'{{"logit_bias": {{"{"9" * 5000}": 1}}}}', "logit_bias: '9999.* is no token id"),
        ('{"logit_bias": {"1": 20000}}', "logit_bias of token 1"),
        ('{"allowed_tokens": []}', "allowed_tokens is empty"),
        ('{"banned_sequences": [[-1]]}', "banned_sequences"),
        ('{"program": "mirostat", "top_p": 0.5}', "top_p beside a `program`"),
        ('{"given": {"x": 1}}', "of a `program`"),
        ('{"program": []}', "program"),
        ('{"program": "sampler", "constants": {"fields": []}}', "the program of the fields"),
        ("[]", "object"),
        ("{", "JSON"),
    ],
)
def test_a_wrong_text_is_refused_each_time(text: str, told: str) -> None:
    for _ in range(2):
        with pytest.raises(ApiError, match=f"^invalid-argument: sampler parameters.*{told}"):
            read_parameters(text)


def test_samplers_of_compiled_fields_have_no_state_to_read(guest: Guest) -> None:
    def read(parameters: str) -> int:
        return sample.read_state(*guest.at, guest.sampler(parameters))

    with refused("invalid-argument"):
        read('{"temperature": 0.5}')
    futures = [read(one) for one in (PENALIZED, argmax().to_json())]
    guest.server.drain()
    found = [guest.instance.futures.take(future, FutureKind.TEXT) for future in futures]
    assert found == ["{}", "{}"]


def test_a_batch_carries_no_more_values_than_are_soon_copied(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of programs with 400 bytes each two; the others wait for the next plans."""
    monkeypatch.setattr("pie_control.scheduler.commands.sampler.MOST_VALUES", 1000)

    def rule(logits: device.Tensor, state: device.State) -> device.Tensor:
        return logits.argmax() + state.table[0] * 0

    sent = device.program(rule)(table=[0] * 50).to_json()
    guest = Guest(server)
    for _ in range(5):
        create_sampler(*guest.at, sent)
    server.drain()
    assert [count for kind, count in batches(server) if kind == SetSampler.kind] == [2, 2, 1]


def test_a_distribution_that_is_not_taken_holds_no_other() -> None:
    server = Server()
    guest, _, embed = ready_guest(server)
    asked = [guest.dist(embed, k) for k in (1, 100)]
    server.drain()
    for handle in asked:
        future = guest.instance.futures.get(handle)
        assert all(part.base is None for part in future.value), "views hold the others' rows"
