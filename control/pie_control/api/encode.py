"""Trait `encode`: numbers of whole texts."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from pie_control.api.binder import queue_of
from pie_control.api.tokenize import INLINE_CHARACTERS, MAX_CHARACTERS
from pie_control.confined.pool import ConfinedPool
from pie_control.errors import check_values, exceeded, invalid
from pie_control.fairness import Owner
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.turns import SlowCalls
from pie_control.models.model import OpenQueue
from pie_control.models.served import ServedModels
from pie_control.models.tokenizer import Whole, encode_whole
from pie_control.scheduler.commands.encode import EncodeCommand, Encoded
from pie_py.wire.plan import ModelDescription

MAX_NUMBERS = 1 << 19  # of one answer, as of attention
PARTS = 4  # of a batch: behind a command of its whole size other users would wait

Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Input = str | list[str | Token]  # a text, a pair of texts, or tokens
Inputs = Annotated[list[Input], msgspec.Meta(min_length=1)]


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a call."""

    most: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prompt: str = ""
    raw: bool = False


class EncodeCalls:
    """The functions of encoders, with the tokenizers of the served models."""

    def __init__(self, models: ServedModels, answers: SlowCalls, pool: ConfinedPool) -> None:
        self._models = models
        self._answers = answers
        self._pool = pool

    def encode(self, instance: Instance, queue: int, inputs: str, options: str) -> Any:
        """Queues texts and opens a future of their numbers."""
        target = queue_of(instance, queue, "encode")
        facts = target.model.description
        given, asked = _read(inputs, Inputs), _read(options or "{}", Options)
        _check(given, asked, facts)
        texts = [_with_prompt(one, facts.prompts.get(asked.prompt, "")) for one in given]
        most = min(asked.most or facts.max_position, facts.max_position)
        # One more than fits shows that a text is too long; what is longer need not be kept.
        job = [text for text in texts if _is_text(text)], most + (asked.most is None)
        codec = self._models.codec(facts.name)
        if len(inputs) <= INLINE_CHARACTERS and codec.trusted:
            return _queue(instance, target, texts, codec.encode_whole(*job), asked, most)

        async def work() -> int:
            owner = Owner(instance.user, instance.id)
            call = encode_whole, str(codec.folder), *job
            packed = await self._pool.call(owner, "the texts", *call)
            whole = [(np.frombuffer(ids, np.int32), second) for ids, second in packed]
            return _queue(instance, target, texts, whole, asked, most)

        return self._answers.start(instance, work)


def _queue(
    instance: Instance,
    target: OpenQueue,
    given: list[Input],
    whole: list[Whole],
    asked: Options,
    most: int,
) -> int:
    """Queues commands of inputs: whole texts' tokens, or those given. Returns a future's handle."""
    facts, each = target.model.description, iter(whole)
    read = [
        next(each) if _is_text(one) else (np.array(one[: asked.most], np.int32), -1)
        for one in given
    ]
    lengths = [len(ids) for ids, _ in read]
    for at, length in enumerate(lengths):
        if not 0 < length <= most:
            raise invalid(
                f"context-length: {facts.name} takes {most} tokens; input {at} has"
                f" {f'more than {most}' if length else 'none'}"
            )
    groups = _groups(lengths, facts.max_batch_tokens)
    target.queue.check_room(len(groups))
    answer = Encoded(instance.futures.create(FutureKind.ENCODED), len(read), sum(lengths))
    for places in groups:
        tokens, seconds = zip(*(read[place] for place in places), strict=True)
        own = [lengths[place] for place in places]
        command = EncodeCommand(
            np.concatenate(tokens), own, list(seconds), places, asked.raw, answer
        )
        target.scheduler.enqueue(target.queue, command)
    return answer.future.handle


def _read(text: str, kind: Any) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise exceeded(f"{len(text)} characters; {MAX_CHARACTERS} at most a call")
    check_values(text, "inputs")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise invalid(f"inputs or options: {error}") from None


def _check(given: list[Input], asked: Options, facts: ModelDescription) -> None:
    if (count := len(given) * facts.hidden_size) > MAX_NUMBERS:
        raise exceeded(f"an answer of {count} numbers; {MAX_NUMBERS} at most: ask in parts")
    if asked.prompt and asked.prompt not in facts.prompts:
        listed = ", ".join(filter(None, facts.prompts)) or "none"
        raise invalid(f"no prompt {asked.prompt[:100]!r}; there are: {listed}")
    for at, one in enumerate(given):
        pair = len(one) == 2 and all(isinstance(part, str) for part in one)
        tokens = all(isinstance(part, int) and part < facts.vocab_size for part in one)
        if not (isinstance(one, str) or pair or tokens):
            raise invalid(
                f"input {at} is no text, no pair of texts, and no list of tokens (0 to"
                f" {facts.vocab_size - 1})"
            )


def _is_text(one: Input) -> bool:
    return isinstance(one, str) or (len(one) > 0 and isinstance(one[0], str))


def _with_prompt(one: Input, before: str) -> Input:
    if isinstance(one, str):
        return before + one
    return [f"{before}{one[0]}", *one[1:]] if before and _is_text(one) else one


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
