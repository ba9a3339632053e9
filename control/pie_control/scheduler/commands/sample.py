"""Commands for what follows from an embed: tokens chosen where the model runs, distributions, and
logits that another choice mixes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pie_control.errors import ApiError, exceeded
from pie_control.instances.futures import Future
from pie_control.resources.samplers import LogitRow, Sampler
from pie_control.scheduler.commands.command import (
    NOTHING,
    BatchLimits,
    Command,
    Numbers,
    Scrub,
    Taker,
    int32,
)
from pie_py.device_programs.language import MOST_BESIDE
from pie_py.wire.plan import (
    Distributions,
    EmbedSampled,
    Hidden,
    Int32,
    KeepLogits,
    NextDist,
    ReadHidden,
    Sample,
    Samples,
    Uint32,
)

if TYPE_CHECKING:
    from pie_control.prefix.provenance import Provenance

MAX_DISTRIBUTION_CELLS = 1 << 22  # commands times the widest k: 32 MiB of answer


NO_MASKS: Uint32 = np.zeros((0, 0), np.uint32)


def only(token: int, vocabulary: int) -> Uint32:
    """The words of a mask that allows one token."""
    words = np.zeros(-(-vocabulary // 32), np.uint32)
    words[token // 32] = 1 << token % 32
    return words


class TokenMask:
    """Words of 32 tokens each: bit `t % 32` of word `t // 32` allows token `t`.

    A thread may compute the words while the model runs; samples that need them are held back until
    then. `want` says that they are missed, and only then is there a notification.
    """

    __slots__ = ("_notify", "_wanted", "error", "words")

    def __init__(
        self, words: Uint32 | None = None, notify: Callable[[], None] | None = None
    ) -> None:
        """Takes the words; or, if a thread is to `finish` them, what that thread then calls."""
        self.words = words
        self.error: str | None = None  # why the words allow nothing
        self._notify = notify
        self._wanted = False

    def want(self) -> bool:
        """True if the words are there; if not, there will be a notification."""
        if self.words is not None:
            return True
        # Before the second look: the thread sets the words, then looks for this.
        self._wanted = True
        return self.words is not None

    def finish(self, words: Uint32, error: str | None = None) -> None:
        """Sets the words, once; called by a thread."""
        self.error = error
        self.words = words
        if self._wanted and self._notify is not None:
            self._notify()


@dataclass(slots=True, eq=False)
class SampleCommand(Command):
    """Chooses a token after an embed. It runs even if its future was cancelled: the sampler moves
    on.

    What comes after it does not fail with it: the worker refuses to embed a token that was not
    chosen.
    """

    batch = Sample
    refused_as = "invalid-argument"
    reads = ("", "embed")
    writes = ("", "sampler.name")
    embed: int
    sampler: Sampler
    step: int
    mask: TokenMask | None
    future: Taker
    on_token: Callable[[int | None], None] | None = None  # gets the token, or None if there is none
    mixed: Sequence[LogitRow] = ()

    @classmethod
    def join(cls, commands: Sequence[Self]) -> Sample:
        """One batch."""
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
            embeds=int32([command.embed for command in commands]),
            samplers=int32([command.sampler.slot for command in commands]),
            steps=np.array([command.step for command in commands], np.uint32),
            top=int32([command.sampler.top for command in commands]),
            masked=int32(masked),
            masks=np.stack(masks) if masks else NO_MASKS,
            mixed=_rows(commands),
        )

    @classmethod
    def program_costs(cls, commands: Sequence[Self]) -> Int32 | None:
        """Those of their samplers."""
        if not any(command.sampler.cost.row for command in commands):
            return None
        return np.array([command.sampler.cost for command in commands], np.int32).T

    def is_held_back(self) -> bool:
        """True if its mask or logits are not there yet, or another queue goes first."""
        if self.mask is not None and not self.mask.want():
            return True
        if not all(row.sent for row in self.mixed):
            return True
        return self.after > 0 and self.queue.must_follow(self)

    def trace(self, provenance: Provenance) -> None:
        """The sampler's last token is the one that this chooses."""
        self.on_token = provenance.chosen(self.sampler.slot, self.on_token)

    @classmethod
    def deliver(cls, commands: Sequence[Self], samples: Samples) -> None:
        """Resolves every command with its token, log-probability and most likely tokens."""
        tokens, logprobs = samples.tokens.tolist(), samples.logprobs.tolist()
        top_tokens, top_logprobs = samples.top_tokens.view(np.uint32), samples.top_logprobs
        for i, command in enumerate(commands):
            if any(row.failed for row in command.mixed):
                command.fail(command.refusal(""))
            elif command.queue.failure is None and tokens[i] >= 0:
                top = command.sampler.top
                if command.on_token is not None:
                    command.on_token(tokens[i])
                command.queue.owner.generated_tokens += 1
                # Copies: one that is not taken is not to hold all that came with it.
                most_likely = top_tokens[i, :top].copy(), top_logprobs[i, :top].copy()
                command.future.resolve((tokens[i], logprobs[i], *most_likely))

    def refusal(self, text: str) -> ApiError:
        """The error of its mask or of its logits, if they have one."""
        if any(row.failed for row in self.mixed):
            return ApiError("failed-dependency", "logits to be mixed in could not be computed")
        if self.mask is not None and self.mask.error:
            return exceeded(self.mask.error)
        return ApiError(self.refused_as, self.sampler.source.explained(text))

    def fail(self, error: ApiError) -> None:
        """Fails its future: there is no token."""
        if self.future.ready:
            return
        if self.on_token is not None:
            self.on_token(None)
        self.future.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails its future, unless that was cancelled or has a value."""
        if self.on_token is not None:
            self.on_token(None)
        self.queue.fail_dependant(self.future)

    def scrub(self, scrub: Scrub) -> None:
        """The sampler's last token is not the one that was to be."""
        scrub.samplers.add(self.sampler.slot)


def _rows(commands: Sequence[SampleCommand]) -> Int32:
    """The rows that each mixes in, as `Sample` wants them: -1 for none, -2 for one that failed."""
    if not any(command.mixed for command in commands):
        return NOTHING
    rows = np.full((len(commands), MOST_BESIDE), -1, np.int32)
    for row, command in zip(rows, commands, strict=True):
        row[: len(command.mixed)] = [-2 if one.failed else one.row for one in command.mixed]
    return rows


@dataclass(slots=True, eq=False)
class EmbedSampledCommand(Command):
    """Embeds the token that a sampler chose last."""

    batch = EmbedSampled
    runs_ahead = True
    refused_as = "failed-dependency"
    columns = ("sampler.slot", "position", "embed")
    reads = ("", "sampler.name")
    writes = ("", "embed")
    sampler: Sampler
    position: int
    embed: int

    def trace(self, provenance: Provenance) -> None:
        """The embed holds a token that will be known."""
        provenance.embedded_choice(self.queue, self.embed, self.position, self.sampler.slot)

    def scrub(self, scrub: Scrub) -> None:
        """The embed."""
        scrub.embeds.add(self.embed)


class Question(Command):
    """Asks for what follows from embeds. Only its future depends on it."""

    __slots__ = ()
    is_withdrawn_if_cancelled = True
    future: Future

    def offer_withdrawal(self, withdraw: Callable[[Command], None]) -> None:
        """It is taken out when its future is cancelled."""
        self.future.on_cancel = partial(withdraw, self)

    def answer(self, value: Any) -> None:
        """Gives its future a value, unless what is before it in its queue has failed."""
        if self.queue.failure is None:
            self.future.on_cancel = None
            self.future.resolve(value)

    def fail(self, error: ApiError) -> None:
        """Fails its future."""
        self.future.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails its future, unless that was cancelled or has a value."""
        self.queue.fail_dependant(self.future)


@dataclass(slots=True, eq=False)
class NextDistCommand(Question):
    """Asks for the next-token distribution of an embed."""

    batch = NextDist
    columns = ("embed", "k")
    reads = ("", "embed")
    embed: int
    k: int
    future: Future

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as have an answer of bounded size: the widest makes all as wide."""
        widest = 0
        for i, command in enumerate(commands):
            widest = max(widest, command.k)
            if widest * (i + 1) > MAX_DISTRIBUTION_CELLS:
                return max(i, 1)
        return len(commands)

    @classmethod
    def deliver(cls, commands: Sequence[Self], distributions: Distributions) -> None:
        """Gives every command its own part of the distributions: token ids, probabilities."""
        tokens = distributions.tokens.view(np.uint32)
        probabilities = distributions.probabilities
        for i, command in enumerate(commands):
            # Copies: one that is not taken is not to hold all that came with it.
            k = command.k
            command.answer((tokens[i, :k].copy(), probabilities[i, :k].copy()))


@dataclass(slots=True, eq=False)
class ReadHiddenCommand(Question):
    """Asks for the mean of hidden states."""

    batch = ReadHidden
    counted = "embeds"
    takes_tokens = True
    reads = ("", "embeds")
    embeds: Numbers
    future: Future

    @classmethod
    def join(cls, commands: Sequence[Self]) -> ReadHidden:
        """One batch."""
        starts = [0, *accumulate(len(command.embeds) for command in commands)]
        return ReadHidden(int32(starts), int32([e for c in commands for e in c.embeds]))

    @classmethod
    def deliver(cls, commands: Sequence[Self], hidden: Hidden) -> None:
        """Gives every command its own mean."""
        for command, mean in zip(commands, hidden.means, strict=True):
            command.answer(mean.copy())


@dataclass(slots=True, eq=False)
class KeepLogitsCommand(Command):
    """Keeps the logits after an embed. The choice that wants them waits until this is sent."""

    batch = KeepLogits
    is_notified_when_sent = True
    columns = ("embed", "row.row")
    reads = ("", "embed")
    embed: int
    row: LogitRow

    def was_sent(self) -> None:
        """Commands behind it in a plan may read the row."""
        self.row.sent = True

    def fail(self, error: ApiError) -> None:
        """Fails the choice that wants the row, and what comes behind it in its queue."""
        self.row.fail()
        self.queue.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails the choice that wants the row."""
        self.row.fail()
