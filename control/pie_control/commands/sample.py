"""Tokens chosen where the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from pie_control.commands.command import NOTHING, Command, Numbers, Touched, int32
from pie_control.commands.token_mask import TokenMask
from pie_control.errors import ApiError, Code
from pie_control.resources.logit_rows import LogitRow
from pie_control.resources.samplers import Sampler
from pie_py.wire.operations import OTHERS
from pie_py.wire.plan import BatchResult, EmbedSampled, Int32, Sample, Uint32

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub
    from pie_control.prefix.provenance import Provenance


class Taker(Protocol):
    """Takes what a sampler has chosen: a future, or a run."""

    @property
    def ready(self) -> bool:
        """Whether it has an answer."""

    def resolve(self, value: Any) -> None:
        """A token, its log-probability, the most likely tokens and theirs."""

    def fail(self, error: ApiError) -> None:
        """There is none."""


@dataclass(slots=True, eq=False)
class SampleCommand(Command):
    """Chooses a token after an embed. It runs even if its future was cancelled: the sampler moves
    on.

    What comes after it does not fail with it: the worker refuses to embed a token that was not
    chosen.
    """

    kind: ClassVar[str] = Sample.kind
    refused_as: ClassVar[Code] = "invalid-argument"
    embed: int
    sampler: Sampler
    step: int
    mask: TokenMask | None
    future: Taker
    on_token: Callable[[int | None], None] | None = None  # told the token, or None if there is none
    mixed: Sequence[LogitRow] = ()

    def read(self) -> Touched:
        """The embed."""
        return [], [self.embed]

    def written(self) -> Touched:
        """The sampler."""
        return [], [self.sampler.name]

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
            masks=np.stack(masks) if masks else np.zeros((0, 0), np.uint32),
            mixed=_rows(commands),
        )

    def is_held_back(self) -> bool:
        """Whether its mask or logits are not there yet, or another queue goes first."""
        if self.mask is not None and not self.mask.want():
            return True
        if not all(row.sent for row in self.mixed):
            return True
        return self.after > 0 and self.queue.must_follow(self)

    def trace(self, provenance: Provenance) -> None:
        """The sampler's last token is the one that this chooses."""
        self.on_token = provenance.chosen(self.sampler.slot, self.on_token)

    @classmethod
    def deliver(cls, commands: Sequence[Self], answer: BatchResult) -> None:
        """Resolves every command with its token, log-probability and most likely tokens."""
        samples = answer.samples
        if samples is None:
            return
        tokens, logprobs = samples.tokens.tolist(), samples.logprobs.tolist()
        top_tokens, top_logprobs = samples.top_tokens.view(np.uint32), samples.top_logprobs
        for i, command in enumerate(commands):
            if any(row.failed for row in command.mixed):
                command.fail(command.refusal(""))
            elif command.queue.failure is None and tokens[i] >= 0:
                top = command.sampler.top
                if command.on_token is not None:
                    command.on_token(tokens[i])
                command.future.resolve(
                    (tokens[i], logprobs[i], top_tokens[i, :top], top_logprobs[i, :top])
                )

    def refusal(self, text: str) -> ApiError:
        """What is wrong with its mask or with logits, if they say so."""
        if any(row.failed for row in self.mixed):
            return ApiError("failed-dependency", "logits to be mixed in could not be computed")
        if self.mask is not None and self.mask.error:
            return ApiError("limit-exceeded", self.mask.error)
        return ApiError(self.refused_as, text)

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
        if not self.future.ready:
            self.future.fail(self.queue.dependency_error())

    def scrub(self, scrub: Scrub) -> None:
        """The sampler's last token is not the one that was to be."""
        scrub.samplers.add(self.sampler.slot)


def _rows(commands: Sequence[SampleCommand]) -> Int32:
    """What each mixes in, as `Sample` wants it: -1 for nothing, -2 for what there is not."""
    if not any(command.mixed for command in commands):
        return NOTHING
    rows = np.full((len(commands), OTHERS), -1, np.int32)
    for row, command in zip(rows, commands, strict=True):
        row[: len(command.mixed)] = [-2 if one.failed else one.row for one in command.mixed]
    return rows


@dataclass(slots=True, eq=False)
class EmbedSampledCommand(Command):
    """Embeds the token that a sampler chose last."""

    kind: ClassVar[str] = EmbedSampled.kind
    runs_ahead: ClassVar[bool | None] = True
    refused_as: ClassVar[Code] = "failed-dependency"
    sampler: Sampler
    position: int
    embed: int

    def read(self) -> Touched:
        """The sampler."""
        return [], [self.sampler.name]

    def written(self) -> Touched:
        """The embed."""
        return [], [self.embed]

    @classmethod
    def join(cls, commands: Sequence[Self]) -> EmbedSampled:
        """One batch."""
        return EmbedSampled(
            int32([command.sampler.slot for command in commands]),
            int32([command.position for command in commands]),
            int32([command.embed for command in commands]),
        )

    def trace(self, provenance: Provenance) -> None:
        """The embed holds a token that will be known."""
        provenance.embedded_choice(self.queue, self.embed, self.position, self.sampler.slot)

    def scrub(self, scrub: Scrub) -> None:
        """The embed."""
        scrub.embeds.add(self.embed)
