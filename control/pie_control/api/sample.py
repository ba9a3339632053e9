"""Trait `sample`: tokens chosen where the model runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from pie_control.api.adapter import find_adapter
from pie_control.api.binder import queue_of
from pie_control.api.device_programs import (
    read_program_parameters,
    read_values,
    take_attend,
)
from pie_control.api.forward import check_step, queue_step
from pie_control.api.sampler_parameters import PLAIN, AnyParameters, read_parameters
from pie_control.api.text import check_distribution, written_embed
from pie_control.commands.forward import NO_ADAPTER
from pie_control.commands.sample import (
    EmbedSampledCommand,
    KeepLogitsCommand,
    SampleCommand,
    TokenMask,
)
from pie_control.commands.sampler import (
    FeedSamplerCommand,
    ReadStateCommand,
    SetSamplerCommand,
    WriteStateCommand,
)
from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.resources.samplers import NO_COUNTS, LogitRow, Sampler
from pie_py.device_programs.bound import ATTEND_VERSIONS, VERSIONS
from pie_py.device_programs.language import REMEMBERED
from pie_py.device_programs.program import Program
from pie_py.device_programs.step_cost import FREE, attend_cost, step_cost
from pie_py.wire.plan import Uint32


def create_sampler(instance: Instance, queue: int, parameters: str) -> int:
    """Makes a sampler and returns its handle."""
    target = queue_of(instance, queue, "sample")
    facts = target.model.description
    vocabulary = facts.vocab_size
    parameters, attend = take_attend(parameters, facts)
    wanted: AnyParameters
    bound, rule = None, PLAIN
    if '"program"' in parameters:
        wanted, bound = read_program_parameters(parameters, vocabulary)
    else:
        wanted = rule = read_parameters(parameters)
    if wanted.logprobs:
        check_distribution(instance, wanted.logprobs)
    target.queue.check_room()
    program = None if bound is None else bound.program
    remembers = program is not None and program.uses(*REMEMBERED)
    program_bytes = 0 if program is None else program.given_bytes(vocabulary, VERSIONS)
    if attend is not None:
        longest = min(facts.max_position, facts.kv_pages * facts.page_size)
        heads = facts.heads, facts.kv_heads
        state = attend.program.state_bytes(longest, ATTEND_VERSIONS, *heads)
        state += attend.program.prompt_bytes(longest, facts.heads, facts.head_dim)
        program_bytes += max(1, facts.layers * state + attend.program.given_bytes(vocabulary))
    cost = FREE if program is None else step_cost(program, vocabulary)
    if attend is not None:
        more = attend_cost(attend.program, vocabulary, facts.layers)
        cost = cost._replace(row=cost.row + more)
    pool = target.model.samplers
    model = target.model
    model.sampler_share.check(instance.user, 1, pool.slots.free)
    if remembers:
        model.remembering_share.check(instance.user, 1, pool.rows.free)
    if program_bytes:
        model.program_share.check(instance.user, program_bytes, pool.free_bytes)
    handle, sampler = target.space.samplers.create(
        remembers=remembers,
        mixes=0 if program is None else program.beside,
        top=min(wanted.logprobs, vocabulary),
        program_bytes=program_bytes,
        program=program,
        attend=None if attend is None else attend.program,
        cost=cost,
    )
    if attend is not None and attend.program.window is not None:
        target.queue.told = handle
    seed = int.from_bytes(os.urandom(8)) if wanted.seed is None else wanted.seed
    command = SetSamplerCommand(sampler, rule.numbers, rule.top_k, seed, bound, attend, pool.freed)
    target.scheduler.enqueue(target.queue, command)
    return handle


def read_state(instance: Instance, queue: int, sampler: int) -> int:
    """Queues a look at the state of a device program and opens a future of it."""
    target, found, program = _with_program(instance, queue, sampler)
    check_distribution(instance, math.inf)
    future = instance.futures.create(FutureKind.TEXT)
    vocabulary = target.model.description.vocab_size
    command = ReadStateCommand(found, program, found.steps, vocabulary, future)
    target.scheduler.enqueue(target.queue, command)
    return future.handle


def write_state(instance: Instance, queue: int, sampler: int, state: str) -> None:
    """Gives a device program other values of some names, from its next choice on."""
    target, found, program = _with_program(instance, queue, sampler)
    values = read_values(program, state, target.model.description.vocab_size)
    if values:
        target.scheduler.enqueue(target.queue, WriteStateCommand(found, found.steps, values))


def _with_program(
    instance: Instance, queue: int, sampler: int
) -> tuple[OpenQueue, Sampler, Program]:
    """A queue that has room, a sampler, and the device program that it is."""
    target = queue_of(instance, queue, "sample")
    found = target.space.samplers.find(sampler)
    if found.program is None:
        raise ApiError("invalid-argument", f"sampler {sampler} is no device program")
    if found.is_lost:
        raise found.lost_state()
    target.queue.check_room()
    return target, found, found.program


def destroy_sampler(instance: Instance, queue: int, sampler: int) -> None:
    """Ends a sampler once the commands queued before have been sent."""
    target = queue_of(instance, queue, "sample")
    target.space.samplers.free(sampler, target.defer)


def feed_sampler(
    instance: Instance, queue: int, sampler: int, tokens: list[int], generated: bool
) -> None:
    """Tells a sampler of tokens that it did not choose, for a device program that looks back."""
    target = queue_of(instance, queue, "sample")
    found = target.space.samplers.find(sampler)
    facts = target.model.description
    if tokens and max(tokens) >= facts.vocab_size:
        raise ApiError(
            "invalid-argument",
            f"token {max(tokens)} is outside the vocabulary (0 to {facts.vocab_size - 1})",
        )
    if tokens and found.counts != NO_COUNTS:
        target.queue.check_room()
        target.scheduler.enqueue(
            target.queue, FeedSamplerCommand(found, tokens, generated, found.steps)
        )


def mix_logits(
    instance: Instance, queue: int, embed: int, sampler_queue: int, sampler: int
) -> None:
    """Keeps the logits after an embed for a sampler's next choice, perhaps of another model."""
    source, target = (
        queue_of(instance, queue, "sample"),
        queue_of(instance, sampler_queue, "sample"),
    )
    found = target.space.samplers.find(sampler)
    sizes = [one.model.description.vocab_size for one in (source, target)]
    if sizes[0] != sizes[1]:
        raise ApiError(
            "invalid-argument", f"the models have {sizes[0]} and {sizes[1]} tokens, not the same"
        )
    if len(found.mixing) >= found.mixes:
        raise ApiError(
            "invalid-argument",
            f"the sampler reads {found.mixes} other logits: a device program as many as it names",
        )
    row = written_embed(source, embed)
    source.queue.check_room()
    saved = LogitRow(source.model.logit_rows)
    source.scheduler.enqueue(source.queue, KeepLogitsCommand(row, saved))
    found.mixing.append(saved)


def sample(instance: Instance, queue: int, embed: int, sampler: int) -> int:
    """Queues a choice and opens a future of it."""
    return enqueue_sample(instance, queue_of(instance, queue, "sample"), embed, sampler, None)


def sample_masked(instance: Instance, queue: int, embed: int, sampler: int, mask: Uint32) -> int:
    """As `sample`, among the tokens that a mask allows."""
    target = queue_of(instance, queue, "sample")
    wanted = -(-target.model.description.vocab_size // 32)
    if len(mask) != wanted:
        raise ApiError(
            "invalid-argument",
            f"a mask of {len(mask)} words; {wanted} cover the vocabulary, 32 tokens each",
        )
    return enqueue_sample(instance, target, embed, sampler, TokenMask(mask))


def enqueue_sample(
    instance: Instance,
    target: OpenQueue,
    embed: int,
    sampler: int,
    mask: TokenMask | None,
    on_token: Callable[[int | None], None] | None = None,
) -> int:
    """Queues a choice and opens a future of it; `on_token` gets the token, or None for none."""
    space = target.space
    row = written_embed(target, embed)
    found = space.samplers.find(sampler)
    found.check_choice()
    target.queue.check_room()
    future = instance.futures.create(FutureKind.SAMPLE)
    _choose(target, row, found, mask, future, on_token)
    return future.handle


def _choose(
    target: OpenQueue,
    row: int,
    sampler: Sampler,
    mask: TokenMask | None,
    future: Future,
    on_token: Callable[[int | None], None] | None,
) -> None:
    target.scheduler.enqueue(
        target.queue,
        SampleCommand(row, sampler, sampler.steps, mask, future, on_token, sampler.take_mixing()),
    )
    sampler.steps += 1


def take_sample(instance: Instance, future: int) -> Any:
    """Consumes a future of a sample: token, log-probability, the most likely tokens and theirs."""
    return instance.futures.take(future, FutureKind.SAMPLE)


def embed_sampled(instance: Instance, queue: int, sampler: int, position: int, embed: int) -> None:
    """Queues the embedding of the token that a sampler chose last, known or not."""
    target = queue_of(instance, queue, "sample")
    space = target.space
    found = space.samplers.find(sampler)
    row = space.embeds.find_one(embed)
    _check_embedding(target, sampler, found, position)
    target.queue.check_room()
    _embed(target, found, position, row)


def _check_embedding(target: OpenQueue, handle: int, sampler: Sampler, position: int) -> None:
    limit = target.model.description.max_position
    if sampler.steps == 0:
        raise ApiError("invalid-argument", f"sampler {handle} has not sampled a token yet")
    if position >= limit:
        raise ApiError(
            "invalid-argument",
            f"position {position} is outside the model's context (0 to {limit - 1})",
        )


def _embed(target: OpenQueue, sampler: Sampler, position: int, row: int) -> None:
    space = target.space
    space.embed_pool.written[row] = True
    space.embed_pool.places[row] = position
    command = EmbedSampledCommand(sampler, position, row)
    target.scheduler.enqueue(target.queue, command)


def step(
    instance: Instance,
    queue: int,
    sampler: int,
    position: int,
    embed: int,
    input_pages: list[int],
    output_page: int,
    adapter: str,
) -> int:
    """Queues `embed-sampled`, its forward, and `sample`; opens a future of the token."""
    target = queue_of(instance, queue, "sample")
    space = target.space
    found = space.samplers.find(sampler)
    row = space.embeds.find_one(embed)
    _check_embedding(target, sampler, found, position)
    pages, room = check_step(target, input_pages, output_page)
    through = find_adapter(target, adapter) if adapter else None
    found.check_choice()
    target.queue.check_room(3)
    future = instance.futures.create(FutureKind.SAMPLE)
    _embed(target, found, position, row)
    slot = NO_ADAPTER
    if through is not None:
        slot = through.slot
        through.users.add(instance)
    queue_step(target, row, pages, room, slot, found if found.attend else None)
    _choose(target, row, found, None, future, None)
    return future.handle
