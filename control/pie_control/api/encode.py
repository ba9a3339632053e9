"""Trait `encode`: numbers of whole texts."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pie_control.api.binder import queue_of
from pie_control.api.tokenize import INLINE_CHARACTERS, MAX_CHARACTERS
from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError
from pie_control.fairness import Owner
from pie_control.guest_json import check_values
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.slow_calls import SlowCalls
from pie_control.models.model import OpenQueue
from pie_control.models.served import ServedModels
from pie_control.models.tokenizer import Whole, encode_whole
from pie_control.scheduler.commands.encode import EncodeCommand, Encoded
from pie_control.wasm import SUSPENDED
from pie_py.wire.plan import ModelDescription

MAX_NUMBERS = 1 << 19  # of one answer, as of attention
# Commands of a batch's whole size would let other users wait for it.
PARTS = 4

Input = str | list[str | int]


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a call."""

    most: int | None = None
    prompt: str | None = None
    raw: bool = False


class EncodeCalls:
    """What encoders do, with the tokenizers of the served models."""

    def __init__(self, models: ServedModels, answers: SlowCalls, pool: ConfinedPool) -> None:
        self._models = models
        self._answers = answers
        self._pool = pool

    def encode(self, instance: Instance, queue: int, inputs: str, options: str) -> Any:
        """Queues texts and opens a future of their numbers."""
        target = queue_of(instance, queue, "encode")
        facts = target.model.description
        given = _read(inputs, list[Input])
        asked = _read(options or "{}", Options)
        _check(given, asked, facts)
        codec = self._models.codec(facts.name)
        texts = [_with_prompt(each, asked.prompt, facts) for each in given if _is_text(each)]
        most = facts.max_position if asked.most is None else min(asked.most, facts.max_position)
        # One more than fits shows that a text is too long, and what is longer need not be kept.
        kept = most + 1 if asked.most is None else most
        if len(inputs) <= INLINE_CHARACTERS and codec.trusted:
            whole = codec.encode_whole(texts, kept)
            return self._queue(instance, target, given, whole, asked, most)

        async def work() -> int:
            owner = Owner(instance.user, instance.id)
            job = encode_whole, str(codec.folder), texts, kept
            packed: list[tuple[bytes, int]] = await self._pool.call(owner, "the texts", *job)
            whole = [(np.frombuffer(ids, np.int32), second) for ids, second in packed]
            return self._queue(instance, target, given, whole, asked, most)

        self._answers.start(instance, work)
        return SUSPENDED

    def _queue(
        self,
        instance: Instance,
        target: OpenQueue,
        given: list[Input],
        whole: list[Whole],
        asked: Options,
        most: int,
    ) -> int:
        """Queues commands of inputs, as whole texts' tokens or those given; the future's handle."""
        each = iter(whole)
        read = [next(each) if _is_text(one) else (_ids(one, asked), -1) for one in given]
        for at, (ids, _) in enumerate(read):
            if not 0 < len(ids) <= most:
                raise ApiError(
                    "invalid-argument",
                    f"context-length: {target.model.description.name} takes {most} tokens; input"
                    f" {at} has {f'more than {most}' if len(ids) else 'none'}",
                )
        groups = _groups([len(ids) for ids, _ in read], target.model.description.max_batch_tokens)
        target.queue.check_room(len(groups))
        future = instance.futures.create(FutureKind.ENCODED)
        answer = Encoded(future, len(read), sum(len(ids) for ids, _ in read))
        for places in groups:
            some = [read[place] for place in places]
            target.scheduler.enqueue(
                target.queue,
                EncodeCommand(
                    np.concatenate([ids for ids, _ in some]),
                    [len(ids) for ids, _ in some],
                    [second for _, second in some],
                    places,
                    asked.raw,
                    answer,
                ),
            )
        return future.handle


def take_encoded(instance: Instance, future: int) -> Any:
    """Consumes a future of an encoder's numbers: tokens read, and the numbers."""
    return instance.futures.take(future, FutureKind.ENCODED)


def _read(text: str, kind: Any) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise ApiError("limit-exceeded", f"{len(text)} characters; {MAX_CHARACTERS} at most a call")
    check_values(text, "inputs")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ApiError("invalid-argument", f"inputs or options: {error}") from None


def _check(given: list[Input], asked: Options, facts: ModelDescription) -> None:
    if not given:
        raise ApiError("invalid-argument", "no input")
    if len(given) * facts.hidden_size > MAX_NUMBERS:
        raise ApiError(
            "limit-exceeded",
            f"{len(given)} inputs with {facts.hidden_size} numbers each; {MAX_NUMBERS} numbers at"
            " most a call",
        )
    if asked.most is not None and asked.most < 1:
        raise ApiError("invalid-argument", f"`most` is {asked.most}; at least one token")
    if asked.prompt is not None and asked.prompt not in facts.prompts:
        listed = ", ".join(name for name in facts.prompts if name) or "none"
        raise ApiError("invalid-argument", f"no prompt {asked.prompt[:100]!r}; there are {listed}")
    for at, each in enumerate(given):
        if isinstance(each, str) or (len(each) == 2 and all(isinstance(t, str) for t in each)):
            continue
        if not all(isinstance(t, int) and 0 <= t < facts.vocab_size for t in each):
            raise ApiError(
                "invalid-argument",
                f"input {at} is no text, no pair of texts, and no list of tokens (0 to"
                f" {facts.vocab_size - 1})",
            )


def _is_text(one: Input) -> bool:
    return isinstance(one, str) or (len(one) > 0 and isinstance(one[0], str))


def _ids(one: Input, asked: Options) -> Any:
    return np.array(one[: asked.most], np.int32)


def _with_prompt(one: Input, name: str | None, facts: ModelDescription) -> Input:
    before = facts.prompts.get(name or "", "")
    return before + one if isinstance(one, str) else [f"{before}{one[0]}", *one[1:]]


def _groups(lengths: list[int], batch: int) -> list[list[int]]:
    """Places of texts that go into one command: neighbours in length."""
    groups: list[list[int]] = []
    room = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if lengths[place] > room:
            groups.append([])
            room = max(1, batch // PARTS)
        groups[-1].append(place)
        room -= lengths[place]
    return groups
