"""Trait `sample`: tokens chosen where the model runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from pie_control.api.adapter import find_adapter, used_by
from pie_control.api.binder import check_ids, queue_of
from pie_control.api.device_programs import (
    MOST_TEXT,
    SamplerWanted,
    bound_program,
    check_attends,
    check_tokens,
    read_parameters,
    read_values,
)
from pie_control.api.forward import check_step, queue_step
from pie_control.api.text import check_distribution, written_embed
from pie_control.device_programs.reading import (
    KnownPrograms,
    in_layers,
    is_of_fields,
    name_of,
    with_text,
)
from pie_control.errors import ApiError, invalid, unsupported
from pie_control.fairness import FairThreads, Owner
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.turns import SlowCalls
from pie_control.models.model import OpenQueue
from pie_control.programs.store import ProgramStore, tensor_of
from pie_control.resources.samplers import NO_COUNTS, NODE_BYTES, LogitRow, Sampler
from pie_control.scheduler.commands.sample import (
    EmbedSampledCommand,
    KeepLogitsCommand,
    SampleCommand,
    TokenMask,
    only,
)
from pie_control.scheduler.commands.sampler import (
    FeedSamplerCommand,
    ReadStateCommand,
    SetSamplerCommand,
    WriteStateCommand,
)
from pie_py.device_programs.bound import ATTEND_VERSIONS, VERSIONS, Bound
from pie_py.device_programs.compiled import is_compiled
from pie_py.device_programs.language import HEADS, PAGES, REMEMBERED, TOKENS
from pie_py.device_programs.program import Program
from pie_py.device_programs.recording import Recorded
from pie_py.device_programs.step_cost import FREE, StepCost, attend_cost, step_cost
from pie_py.wire.plan import ModelDescription, Uint32

MOST_INT32 = (1 << 31) - 1  # as costs are summed up
SHORT = 16 << 10  # characters of parameters that are read at once


class SamplerCalls:
    """Samplers are made once their device programs were read."""

    def __init__(self, programs: KnownPrograms, answers: SlowCalls, uploaded: ProgramStore) -> None:
        """`uploaded` has users' own samplers and tensors."""
        self._programs = programs
        self._answers = answers
        self._uploaded = uploaded
        self._threads = FairThreads(2, of_user=1, name="sampler")

    def create_sampler(self, instance: Instance, queue: int, parameters: str) -> Any:
        """Makes a sampler, returns its handle; the guest is suspended for long programs."""
        facts = queue_of(instance, queue, "sample").model.description
        # What is longer is refused.
        if not SHORT < len(parameters) <= MOST_TEXT and '"tensor"' not in parameters:
            wanted = self._with_text(read_parameters(parameters), instance.user, facts)
            if all(self._programs.find(key) is not None for key in wanted.keys):
                return make_sampler(instance, queue, wanted, *self._bound(wanted, facts)())
        return self._answers.start(instance, partial(self._read, instance, queue, parameters))

    async def _read(self, instance: Instance, queue: int, parameters: str) -> int:
        """Makes a sampler; what grows with its parameters is done in a thread."""
        owner = Owner(instance.user, instance.id)
        token = trio.lowlevel.current_trio_token()

        def tensors(place: str) -> NDArray[np.float32]:
            name, _, own = place.partition("/")
            find = partial(self._uploaded.tensors, name, instance.user)
            return tensor_of(trio.from_thread.run_sync(find, trio_token=token), own)

        read = partial(read_parameters, parameters, tensors)
        facts = queue_of(instance, queue, "sample").model.description
        wanted = self._with_text(await self._threads.run(owner, read), instance.user, facts)
        for key in wanted.keys:
            if self._programs.find(key) is None:
                await self._programs.read(owner, key)
        facts = queue_of(instance, queue, "sample").model.description
        bound = await self._threads.run(owner, self._bound(wanted, facts))
        return make_sampler(instance, queue, wanted, *bound)

    def _with_text(
        self, wanted: SamplerWanted, user: str, facts: ModelDescription
    ) -> SamplerWanted:
        """With the text of an uploaded sampler in the place of its name, and a model's sizes for a
        program in its layers.
        """
        chosen, attend = wanted.program, wanted.attend
        if attend is not None and attend.at:
            key = in_layers(attend.key, attend.at, facts, prompt=attend.prompt)
            wanted = wanted._replace(attend=attend._replace(key=key))
        if not (name := name_of(chosen.key)):
            return wanted
        key = with_text(chosen.key, self._uploaded.sampler_text(name, user))
        return wanted._replace(program=chosen._replace(key=key))

    def _bound(
        self, wanted: SamplerWanted, facts: ModelDescription
    ) -> Callable[[], tuple[Recorded, Bound, Bound | None]]:
        """Checks the values of a sampler's programs, which were read, and packs them."""
        check_tokens(wanted, facts.vocab_size)
        if wanted.attend is not None:
            check_attends(facts, in_layers=bool(wanted.attend.at))
        found = [self._programs.find(key) for key in wanted.keys]
        if None in found:
            raise ApiError("out-of-resources", "more device programs are read than are kept; retry")
        chosen = [each for each in (wanted.program, wanted.attend) if each is not None]

        def bound() -> tuple[Recorded, Bound, Bound | None]:
            both = [
                bound_program(source, each.values, facts)
                for source, each in zip(found, chosen, strict=True)
                if source is not None
            ]
            assert found[0] is not None
            return found[0], both[0], both[1] if both[1:] else None

        return bound


def make_sampler(
    instance: Instance,
    queue: int,
    wanted: SamplerWanted,
    source: Recorded,
    bound: Bound,
    attend: Bound | None,
) -> int:
    """Makes a sampler whose programs were read and returns its handle."""
    target = queue_of(instance, queue, "sample")
    facts, model = target.model.description, target.model
    if wanted.logprobs:
        check_distribution(instance, wanted.logprobs)
    target.queue.check_room()
    program, attends = bound.program, None if attend is None else attend.program
    program_bytes, cost = _price(facts, program, attends)
    pool = model.samplers
    model.shares.samplers.check(instance.user, 1, pool.slots.free)
    if program.uses(*REMEMBERED):
        model.shares.remembering.check(instance.user, 1, pool.rows.free)
    made_of = {
        each.text: NODE_BYTES * len(each.nodes)
        for each in (program, attends)
        if each is not None and not is_compiled(each)
    }
    if more := target.space.samplers.more_bytes(program_bytes, made_of):
        model.shares.program_bytes.check(instance.user, more, pool.free_bytes)
    handle, sampler = target.space.samplers.create(
        program=program,
        source=source,
        top=min(wanted.logprobs, facts.vocab_size),
        program_bytes=program_bytes,
        made_of=made_of,
        attend=attends,
        cost=cost,
    )
    sampler.is_built_in = is_of_fields(wanted.program.key) and is_compiled(program)
    if attends is not None and attends.window is not None:
        target.queue.prompt_observer = handle
    seed = int.from_bytes(os.urandom(8)) if wanted.seed is None else wanted.seed
    command = SetSamplerCommand(sampler, seed, bound, attend, pool.freed)
    target.scheduler.enqueue(target.queue, command)
    return handle


def _price(
    facts: ModelDescription, program: Program, attend: Program | None
) -> tuple[int, StepCost]:
    """The bytes that the worker keeps of programs, and what a step of them costs."""
    vocabulary, kept, cost = facts.vocab_size, 0, FREE
    if not is_compiled(program):
        kept, cost = program.given_bytes(vocabulary, VERSIONS), step_cost(program, vocabulary)
    if attend is not None:
        longest = min(facts.max_position, facts.kv_pages * facts.page_size)
        state = attend.state_bytes(longest, ATTEND_VERSIONS, facts.heads, facts.kv_heads)
        state += attend.prompt_bytes(longest, facts.heads, facts.head_dim)
        layers = 1 if attend.layers else facts.layers  # those have one state together
        kept += max(1, layers * state + attend.given_bytes(vocabulary))
        # At the longest context that the model has room for: it grows with that.
        sizes = {HEADS: facts.heads, TOKENS: longest, PAGES: longest // facts.page_size}
        more = attend_cost(attend, vocabulary, facts.layers, sizes)
        cost = cost._replace(row=min(cost.row + more, MOST_INT32))
    return kept, cost


def sampler_facts(instance: Instance, queue: int, sampler: int) -> str:
    """The needs of a sampler's programs, which the program that has made it is to fill, as JSON."""
    found = queue_of(instance, queue, "sample").space.samplers.find(sampler)
    program, attend = found.program, found.attend
    return json.dumps(
        {
            "looks_back": found.counts != NO_COUNTS,
            "counts": program.uses("counts", "given"),
            "has_state": found.has_state,
            "in_layers": found.stated is attend,
            "beside": found.mixes,
            "window": None if attend is None else attend.window,
        }
    )


def read_state(instance: Instance, queue: int, sampler: int) -> int:
    """Queues a look at the state of a device program and opens a future of it."""
    target, found = _with_state(instance, queue, sampler, reads=True)
    check_distribution(instance, math.inf)
    future = instance.futures.create(FutureKind.TEXT)
    vocabulary = target.model.description.vocab_size
    command = ReadStateCommand(found, found.steps, vocabulary, future)
    target.scheduler.enqueue(target.queue, command)
    return future.handle


def write_state(instance: Instance, queue: int, sampler: int, state: str) -> None:
    """Gives a device program other values of some names, from its next choice on."""
    target, found = _with_state(instance, queue, sampler)
    values = read_values(found.program, state, target.model.description.vocab_size)
    if values:
        target.scheduler.enqueue(target.queue, WriteStateCommand(found, found.steps, values))


def _with_state(
    instance: Instance, queue: int, sampler: int, *, reads: bool = False
) -> tuple[OpenQueue, Sampler]:
    """A queue that has room, and a sampler whose program has its state, which it `reads`."""
    target = queue_of(instance, queue, "sample")
    found = target.space.samplers.find(sampler)
    if found.is_built_in and not (reads and found.stated.layers):
        raise invalid(f"sampler {sampler} is no device program")
    if found.is_lost:
        raise found.lost_state()
    target.queue.check_room()
    return target, found


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
    check_ids(tokens, target.model.description.vocab_size)
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
        raise invalid(f"the models have {sizes[0]} and {sizes[1]} tokens, not the same")
    if source.model.logit_rows is not target.model.logit_rows:
        raise unsupported("models that are loaded by request mix with no other one")
    if len(found.mixing) >= found.mixes:
        raise invalid(
            f"the sampler reads {found.mixes} other logits: a device program as many as it names"
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
        raise invalid(f"a mask of {len(mask)} words; {wanted} cover the vocabulary, 32 tokens each")
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
    _choose(instance, target, row, found, mask, future, on_token)
    return future.handle


def _choose(
    instance: Instance,
    target: OpenQueue,
    row: int,
    sampler: Sampler,
    mask: TokenMask | None,
    future: Future,
    on_token: Callable[[int | None], None] | None,
) -> None:
    if instance.durable is not None and not sampler.has_state:
        known = instance.durable.choice()
        if known is not None:
            mask = TokenMask(only(known, target.model.description.vocab_size))
    target.scheduler.enqueue(
        target.queue,
        SampleCommand(row, sampler, sampler.steps, mask, future, on_token, sampler.take_mixing()),
    )
    sampler.steps += 1


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
        raise invalid(f"sampler {handle} has not sampled a token yet")
    if position >= limit:
        raise invalid(f"position {position} is outside the model's context (0 to {limit - 1})")


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
    through = find_adapter(instance, target, adapter) if adapter else None
    found.check_choice()
    target.queue.check_room(3)
    future = instance.futures.create(FutureKind.SAMPLE)
    _embed(target, found, position, row)
    slot = used_by(instance, through)
    queue_step(target, row, pages, room, slot, found if found.attend else None)
    _choose(instance, target, row, found, None, future, None)
    return future.handle


def attend(
    instance: Instance,
    queue: int,
    sampler: int,
    embed: int,
    input_pages: list[int],
    output_page: int,
    adapter: str,
) -> None:
    """Queues the forward of an embed that reads what a sampler's program chooses."""
    target = queue_of(instance, queue, "sample")
    found = target.space.samplers.find(sampler)
    if found.attend is None:
        raise invalid(f"sampler {sampler} has no program of the stage attend")
    if found.is_lost:
        raise found.lost_state()
    row = written_embed(target, embed)
    pages, room = check_step(target, input_pages, output_page)
    through = find_adapter(instance, target, adapter) if adapter else None
    target.queue.check_room()
    queue_step(target, row, pages, room, used_by(instance, through), found)
