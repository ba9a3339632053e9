"""The commands that queues hold. Every name in them is physical, and every check is behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from pie_control.futures import Future
from pie_py.wire.plan import Int32, Uint32

if TYPE_CHECKING:
    from pie_control.scheduler.queue import CommandQueue


@dataclass(slots=True, eq=False)
class _Queued:
    """What the scheduler adds to a command when it is queued."""

    queue: CommandQueue = field(init=False, repr=False)
    number: int = field(init=False, default=0)  # order over all queues of a model
    queued_ns: int = field(init=False, default=0)
    after: int = field(
        init=False, default=0
    )  # other queues must have sent theirs up to this number


# `read` and `written` name what a command touches, as pages `[p]` and embeds `[e]`: the scheduler
# orders commands by them, within a batch and across the queues of an instance.
Touched: TypeAlias = tuple[Int32, Int32]

NOTHING: Int32 = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class EmbedTextCommand(_Queued):
    """Embeds tokens."""

    kind: ClassVar[str] = "embed_text"
    tokens: Int32  # [n]
    positions: Int32  # [n]
    embeds: Int32  # [n]

    @property
    def rows(self) -> int:
        """Tokens."""
        return len(self.tokens)

    def read(self) -> Touched:
        """Nothing."""
        return NOTHING, NOTHING

    def written(self) -> Touched:
        """The embeds."""
        return NOTHING, self.embeds


@dataclass(slots=True, eq=False)
class ForwardCommand(_Queued):
    """Runs the model over one sequence of inputs."""

    kind: ClassVar[str] = "forward"
    inputs: Int32  # [n] embeds
    pages: Int32  # [p] input pages that have filled slots
    page_used: Int32  # [p] filled slots of each
    has_masked: bool  # whether a slot of the pages is masked
    output_slots: Int32 | None  # [n] KV slots
    output_pages: Int32  # [q] pages that the slots lie in
    outputs: Int32  # [o] embeds
    mask: Int32 | None  # run-length rows

    @property
    def rows(self) -> int:
        """Inputs."""
        return len(self.inputs)

    def read(self) -> Touched:
        """Input pages and inputs."""
        return self.pages, self.inputs

    def written(self) -> Touched:
        """Pages that receive keys and values, and outputs."""
        return self.output_pages, self.outputs


@dataclass(slots=True, eq=False)
class CopyKvCommand(_Queued):
    """Copies slots of one page to another."""

    kind: ClassVar[str] = "copy_kv"
    sources: Int32  # [n] KV slots
    targets: Int32  # [n] KV slots
    source_page: Int32  # [1]
    target_page: Int32  # [1]

    @property
    def rows(self) -> int:
        """Slots."""
        return len(self.sources)

    def read(self) -> Touched:
        """The source page."""
        return self.source_page, NOTHING

    def written(self) -> Touched:
        """The target page."""
        return self.target_page, NOTHING


@dataclass(slots=True, eq=False)
class MaskKvCommand(_Queued):
    """Sets the mask words of pages."""

    kind: ClassVar[str] = "mask_kv"
    pages: Int32  # [n]
    masks: Uint32  # [n]

    @property
    def rows(self) -> int:
        """Pages."""
        return len(self.pages)

    def read(self) -> Touched:
        """Nothing."""
        return NOTHING, NOTHING

    def written(self) -> Touched:
        """The pages."""
        return self.pages, NOTHING


@dataclass(slots=True, eq=False)
class NextDistCommand(_Queued):
    """Asks for the next-token distribution of an embed."""

    kind: ClassVar[str] = "next_dist"
    embed: int
    k: int
    future: Future

    @property
    def rows(self) -> int:
        """Always one."""
        return 1

    def read(self) -> Touched:
        """The embed."""
        return NOTHING, np.array([self.embed], np.int32)

    def written(self) -> Touched:
        """Nothing."""
        return NOTHING, NOTHING


Command: TypeAlias = (
    EmbedTextCommand | ForwardCommand | CopyKvCommand | MaskKvCommand | NextDistCommand
)
LIGHT_KINDS = ("embed_text", "copy_kv", "mask_kv", "next_dist")
KINDS = (*LIGHT_KINDS, "forward")


class Sync:
    """A mark in a queue: its future is ready once all before it has taken effect."""

    __slots__ = ("future",)

    def __init__(self, future: Future) -> None:
        self.future = future
