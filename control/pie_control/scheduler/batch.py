"""Joins commands of one kind into one batch of the wire protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

import numpy as np

from pie_control.scheduler.command import (
    NO_ADAPTER,
    Command,
    CopyEmbedCommand,
    CopyKvCommand,
    EmbedImageCommand,
    EmbedSampledCommand,
    EmbedTextCommand,
    FeedSamplerCommand,
    ForwardCommand,
    MaskKvCommand,
    NextDistCommand,
    Numbers,
    SampleCommand,
    SetSamplerCommand,
    SwapInCommand,
    SwapOutCommand,
    Sync,
    Touched,
)
from pie_py.wire.plan import (
    Batch,
    CopyEmbed,
    CopyKv,
    EmbedImage,
    EmbedSampled,
    EmbedText,
    FeedSampler,
    Forward,
    Int32,
    MaskKv,
    NextDist,
    Sample,
    SetSampler,
    SwapIn,
    SwapOut,
    Uint32,
)

if TYPE_CHECKING:
    from pie_control.scheduler.queue import CommandQueue

# Pages that one batch swaps, and thus one command: a forward of somebody else waits for no more.
MAX_SWAP_PAGES = 256
# Inputs times columns of masks and of observed attention, which the worker lays out: of one forward, and
# of a batch's together. Few numbers may stand for many, and a page may be in a list many times.
MAX_CELLS = 1 << 28
MAX_CONTEXT_PAGES = 1 << 18  # input pages of a batch of forwards: the worker indexes every slot
MAX_DISTRIBUTION_CELLS = 1 << 22  # commands times the widest k: 32 MiB of answer
NOTHING: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What the worker takes in one batch."""

    tokens: int  # inputs of forwards, tokens of embeds, or tokens that samplers are told of
    commands: int
    prompt_tokens: int | None = None  # inputs of prompts beside others' steps; None for no bound


class Dispatched:
    """A batch at the worker: its commands, and the marks of their queues that come right after."""

    __slots__ = ("commands", "done", "failed", "syncs")

    def __init__(
        self, commands: list[Command], failed: Callable[[str], None] | None = None
    ) -> None:
        self.commands = commands
        self.failed = failed  # told why a batch without commands failed
        self.syncs: list[tuple[CommandQueue, Sync]] = []
        self.done = False


def leading_run(queue: CommandQueue, most: int) -> list[Command]:
    """Vertical batching: a queue's first commands, of one kind, none depending on one before it."""
    pending = queue.pending
    first = cast(Command, pending[0])
    if held_back(first):
        return []
    run = [first]
    written = _names(first.written())
    read: set[int] | None = None  # pages, by forwards: a batch stores all keys before any attends
    for item in islice(pending, 1, most):
        if not _same_kind(item, first):
            break
        command = cast(Command, item)
        writes = _names(command.written())
        if not written.isdisjoint(writes) or not written.isdisjoint(_names(command.read())):
            break
        if type(command) is ForwardCommand:
            if read is None:
                read = set(first.read()[0])
            if not read.isdisjoint(writes):
                break
            read.update(command.read()[0])
        if held_back(command):
            break
        written |= writes
        run.append(command)
    return run


def held_back(command: Command) -> bool:
    """Whether a command has to wait: for what another queue of its instance has yet to send, or a mask."""
    if type(command) is SampleCommand and command.mask is not None and not command.mask.want():
        return True
    return command.after > 0 and _must_follow(command)


def _must_follow(command: Command) -> bool:
    """Whether another queue of its instance has yet to send what comes before it."""
    queue = command.queue
    for other in queue.account.active:
        if other is not queue and cast(Command, other.pending[0]).number <= command.after:
            return True
    command.after = 0
    return False


def gather(queues: Iterable[CommandQueue], limits: BatchLimits) -> list[Command]:
    """Horizontal batching: what the queues' first commands offer, each queue's in order."""
    commands: list[Command] = []
    for queue in queues:
        pending = queue.pending
        first = pending[0]
        if len(pending) > 1 and type(pending[1]) is type(first):
            commands += leading_run(queue, limits.commands)
        elif not held_back(cast(Command, first)):
            commands.append(cast(Command, first))
    return commands


def cut(commands: list[Command], limits: BatchLimits) -> list[Command]:
    """What fits into one batch: higher priority first, then the oldest; always at least one."""
    if len(commands) > 1:
        if _fitting(commands, limits) < len(commands):
            by_age(commands)
            del commands[_fitting(commands, limits) :]
        by_rank(commands)
    return commands


def by_age(commands: list[Command]) -> None:
    """Sorts commands by who goes first: higher priority, then the oldest."""
    commands.sort(key=_age)


def by_rank(commands: list[Command]) -> None:
    """Sorts the commands of a batch by their queues, each queue's in the order that they have.

    So the sequences that decode together are in the same order in every step, whoever of them was the
    first to ask: the worker finds each where it was. With two plans in flight the order of asking would
    be another in every other step.
    """
    commands.sort(key=_rank)


def _fitting(commands: list[Command], limits: BatchLimits) -> int:
    """How many of the commands, from the first on, fit into one batch; always at least one."""
    first = commands[0]
    fit = min(len(commands), limits.commands)
    if isinstance(first, ForwardCommand):
        total = cells = pages = 0
        for i in range(fit):
            command = cast(ForwardCommand, commands[i])
            total += len(command.inputs)
            cells += command.cells
            pages += len(command.pages)
            if total > limits.tokens or cells > MAX_CELLS or pages > MAX_CONTEXT_PAGES:
                fit = max(i, 1)
                break
    elif isinstance(
        first, EmbedTextCommand | EmbedImageCommand | CopyEmbedCommand | FeedSamplerCommand
    ):
        total = 0
        for i in range(fit):
            total += commands[i].rows
            if total > limits.tokens:
                fit = max(i, 1)
                break
    elif isinstance(first, SwapOutCommand | SwapInCommand):
        pages = 0
        for i in range(fit):
            pages += commands[i].rows
            if pages > MAX_SWAP_PAGES:
                fit = max(i, 1)
                break
    elif isinstance(first, NextDistCommand):
        widest = 0
        for i in range(fit):
            widest = max(widest, cast(NextDistCommand, commands[i]).k)
            if widest * (i + 1) > MAX_DISTRIBUTION_CELLS:
                fit = max(i, 1)
                break
    return fit


def join(commands: list[Command]) -> Batch:
    """One wire batch of commands of one kind."""
    match commands[0]:
        case EmbedTextCommand():
            return _join_embed_text(cast(list[EmbedTextCommand], commands))
        case EmbedImageCommand():
            return _join_embed_image(cast(list[EmbedImageCommand], commands))
        case ForwardCommand():
            return _join_forward(cast(list[ForwardCommand], commands))
        case CopyEmbedCommand():
            copied = cast(list[CopyEmbedCommand], commands)
            return CopyEmbed(
                _array([n for c in copied for n in c.sources]),
                _array([n for c in copied for n in c.positions]),
                _array([n for c in copied for n in c.embeds]),
            )
        case CopyKvCommand():
            copies = cast(list[CopyKvCommand], commands)
            return CopyKv(_chain([c.sources for c in copies]), _chain([c.targets for c in copies]))
        case MaskKvCommand():
            masks = cast(list[MaskKvCommand], commands)
            return MaskKv(
                _chain([c.pages for c in masks]), np.concatenate([c.masks for c in masks])
            )
        case NextDistCommand():
            dists = cast(list[NextDistCommand], commands)
            return NextDist(
                _array([c.embed for c in dists]),
                _array([c.k for c in dists]),
            )
        case SetSamplerCommand():
            return _join_set_sampler(cast(list[SetSamplerCommand], commands))
        case FeedSamplerCommand():
            return _join_feed_sampler(cast(list[FeedSamplerCommand], commands))
        case SampleCommand():
            return _join_sample(cast(list[SampleCommand], commands))
        case EmbedSampledCommand():
            sampled = cast(list[EmbedSampledCommand], commands)
            return EmbedSampled(
                _array([c.sampler.slot for c in sampled]),
                _array([c.position for c in sampled]),
                _array([c.embed for c in sampled]),
            )
        case SwapOutCommand():
            gone = cast(list[SwapOutCommand], commands)
            return SwapOut(_chain([c.pages for c in gone]), _chain([c.hosts for c in gone]))
        case SwapInCommand():
            back = cast(list[SwapInCommand], commands)
            return SwapIn(_chain([c.hosts for c in back]), _chain([c.pages for c in back]))


def _join_embed_text(commands: list[EmbedTextCommand]) -> EmbedText:
    tokens: Numbers = []
    positions: Numbers = []
    embeds: Numbers = []
    for command in commands:
        tokens += command.tokens
        positions += command.positions
        embeds += command.embeds
    return EmbedText(_array(tokens), _array(positions), _array(embeds))


def _join_embed_image(commands: list[EmbedImageCommand]) -> EmbedImage:
    files = [command.file for command in commands]
    words = b"".join(file + bytes(-len(file) % 4) for file in files)
    return EmbedImage(
        sizes=np.array([(c.size.width, c.size.height) for c in commands], np.int32),
        lengths=_array([len(file) for file in files]),
        files=np.frombuffer(words, np.uint32),
        positions=_array([place for command in commands for place in command.positions]),
        embeds=_array([embed for command in commands for embed in command.embeds]),
    )


def _join_forward(commands: list[ForwardCommand]) -> Forward:
    inputs: Numbers = []
    slots: Numbers = []
    outputs: Numbers = []
    masks: list[Int32] = []
    pages = 0
    covered = 0  # numbers of masks
    input_starts, page_starts, output_starts, mask_starts = [0], [0], [0], [0]
    for command in commands:
        inputs += command.inputs
        slots += command.output_slots or [-1] * len(command.inputs)
        outputs += command.outputs
        pages += len(command.pages)
        if command.mask is not None:
            masks.append(command.mask)
            covered += len(command.mask)
        input_starts.append(len(inputs))
        page_starts.append(pages)
        output_starts.append(len(outputs))
        mask_starts.append(covered)
    adapters = [command.adapter for command in commands]
    watched = [command.observation for command in commands]
    observes = any(watched)
    return Forward(
        input_starts=_array(input_starts),
        inputs=_array(inputs),
        page_starts=_array(page_starts),
        pages=_chain([command.pages for command in commands]),
        page_used=_chain([command.page_used for command in commands]),
        has_masked=_array([command.has_masked for command in commands]),
        output_slots=_array(slots),
        output_starts=_array(output_starts),
        outputs=_array(outputs),
        mask_starts=_array(mask_starts),
        mask=_chain(masks) if masks else NOTHING,
        adapters=_array(adapters) if max(adapters) != NO_ADAPTER else NOTHING,
        observed=_array([o.count if o else 0 for o in watched]) if observes else NOTHING,
        detail=_array([o.detail if o else 0 for o in watched]) if observes else NOTHING,
    )


def _join_set_sampler(commands: list[SetSamplerCommand]) -> SetSampler:
    tokens: Numbers = []
    biases: list[float] = []
    starts = [0]
    for command in commands:
        tokens += command.bias_tokens
        biases += command.biases
        starts.append(len(tokens))
    seeds = [(command.seed & 0xFFFFFFFF, command.seed >> 32) for command in commands]
    return SetSampler(
        samplers=_array([command.sampler.slot for command in commands]),
        numbers=np.array([command.numbers for command in commands], np.float32),
        top_k=_array([command.top_k for command in commands]),
        seeds=np.array(seeds, np.uint32),
        rows=_array([command.sampler.counts for command in commands]),
        bias_starts=_array(starts),
        bias_tokens=_array(tokens),
        biases=np.array(biases, np.float32),
    )


def _join_feed_sampler(commands: list[FeedSamplerCommand]) -> FeedSampler:
    tokens: Numbers = []
    starts = [0]
    for command in commands:
        tokens += command.tokens
        starts.append(len(tokens))
    return FeedSampler(
        samplers=_array([command.sampler.slot for command in commands]),
        generated=_array([command.generated for command in commands]),
        starts=_array(starts),
        tokens=_array(tokens),
    )


def _join_sample(commands: list[SampleCommand]) -> Sample:
    masks: list[Uint32] = []
    masked: Numbers = []
    for command in commands:
        if command.mask is None:
            masked.append(-1)
        else:
            assert command.mask.words is not None  # or it would have been held back
            masked.append(len(masks))
            masks.append(command.mask.words)
    return Sample(
        embeds=_array([command.embed for command in commands]),
        samplers=_array([command.sampler.slot for command in commands]),
        steps=np.array([command.step for command in commands], np.uint32),
        top=_array([command.sampler.top for command in commands]),
        masked=_array(masked),
        masks=np.stack(masks) if masks else np.zeros((0, 0), np.uint32),
    )


def _age(command: Command) -> tuple[int, int]:
    return command.queue.rank[0], command.number


def _rank(command: Command) -> tuple[int, int]:
    return command.queue.rank


def _names(touched: Touched) -> set[int]:
    """Pages, and embeds as negative numbers."""
    pages, embeds = touched
    return {*pages, *(~embed for embed in embeds)}


def _same_kind(item: Command | Sync, first: Command) -> bool:
    return type(item) is type(first)


def _array(numbers: list[int]) -> Int32:
    return np.array(numbers, np.int32)


def _chain(parts: list[Int32]) -> Int32:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
