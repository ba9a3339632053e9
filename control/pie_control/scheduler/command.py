"""The commands that queues hold. Every name in them is physical, and every check is behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from pie_control.instances.futures import Future
from pie_control.scheduler.mask import Mask
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import Int32, Uint32

if TYPE_CHECKING:
    from pie_control.resources.samplers import Sampler
    from pie_control.scheduler.queue import CommandQueue


@dataclass(slots=True, eq=False)
class _Queued:
    """What the scheduler adds to a command when it is queued."""

    queue: CommandQueue = field(init=False, repr=False)
    number: int = field(init=False, default=0)  # order over all queues of a model
    queued_at: float = field(init=False, default=0.0)
    after: int = field(
        init=False, default=0
    )  # other queues must have sent theirs up to this number
    counts: ClassVar[int] = 1  # how much it adds to its owner's queued commands


# What a decode step has one or two of is in lists of Python numbers: NumPy's price is by the call, and
# becomes worth it only when the scheduler joins the commands of many instances.
Numbers: TypeAlias = list[int]

NO_ADAPTER = -1

# `read` and `written` name what a command touches, as pages `[p]` and embeds `[e]`: the scheduler
# orders commands by them, within a batch and across the queues of an instance. Samplers have names
# among those of the embeds, after the last one; host pages have theirs among those of the pages.
Touched: TypeAlias = tuple[Numbers, Numbers]


@dataclass(slots=True, eq=False)
class EmbedTextCommand(_Queued):
    """Embeds tokens."""

    kind: ClassVar[str] = "embed_text"
    tokens: Numbers  # [n]
    positions: Numbers  # [n]
    embeds: Numbers  # [n]

    @property
    def rows(self) -> int:
        """Tokens."""
        return len(self.tokens)

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The embeds."""
        return [], self.embeds


@dataclass(slots=True, eq=False)
class EmbedImageCommand(_Queued):
    """Embeds an image."""

    kind: ClassVar[str] = "embed_image"
    size: ImageSize
    file: bytes
    positions: Numbers  # [n]
    embeds: Numbers  # [n]

    @property
    def rows(self) -> int:
        """Embeds."""
        return len(self.embeds)

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The embeds."""
        return [], self.embeds


@dataclass(slots=True, eq=False)
class CopyEmbedCommand(_Queued):
    """Copies embeds, to positions of their own or as they are."""

    kind: ClassVar[str] = "copy_embed"
    sources: Numbers  # [n] embeds
    positions: Numbers  # [n] of the targets; -1 is the source's
    embeds: Numbers  # [n] that become copies, no two the same

    @property
    def rows(self) -> int:
        """Embeds."""
        return len(self.embeds)

    def read(self) -> Touched:
        """The sources."""
        return [], self.sources

    def written(self) -> Touched:
        """The copies."""
        return [], self.embeds


@dataclass(frozen=True, slots=True)
class Observation:
    """What is wanted of a forward's attention."""

    future: Future
    count: int  # last inputs, whose attention is summed
    detail: int  # index into the wire protocol's DETAILS
    rows: int  # of the answer


@dataclass(slots=True, eq=False)
class ForwardCommand(_Queued):
    """Runs the model over one sequence of inputs."""

    kind: ClassVar[str] = "forward"
    inputs: Numbers  # [n] embeds
    pages: Int32  # [p] input pages that have filled slots
    page_used: Int32  # [p] filled slots of each
    has_masked: bool  # whether a slot of the pages is masked
    output_slots: Numbers | None  # [n] KV slots
    output_pages: Numbers  # [q] pages that the slots lie in
    outputs: Numbers  # [o] embeds
    mask: Int32 | None  # run-length rows
    adapter: int = NO_ADAPTER  # slot
    observation: Observation | None = None
    cells: int = 0  # inputs times columns, of a mask or of observed attention
    divisible: bool = False  # may run in parts
    sent: Sequence[int] = ()  # slots of parts that have been sent

    @property
    def rows(self) -> int:
        """Inputs."""
        return len(self.inputs)

    def read(self) -> Touched:
        """Input pages and inputs."""
        return self.pages.tolist(), self.inputs

    def written(self) -> Touched:
        """Pages that receive keys and values, and outputs."""
        return self.output_pages, self.outputs


@dataclass(slots=True, eq=False)
class ForwardPart(ForwardCommand):
    """The first inputs of a forward whose others are still in its queue."""

    counts: ClassVar[int] = 0


@dataclass(slots=True, eq=False)
class CopyKvCommand(_Queued):
    """Copies slots of one page to another."""

    kind: ClassVar[str] = "copy_kv"
    sources: Int32  # [n] KV slots
    targets: Int32  # [n] KV slots
    source_page: int
    target_page: int

    @property
    def rows(self) -> int:
        """Slots."""
        return len(self.sources)

    def read(self) -> Touched:
        """The source page."""
        return [self.source_page], []

    def written(self) -> Touched:
        """The target page."""
        return [self.target_page], []


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
        return [], []

    def written(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []


@dataclass(slots=True, eq=False)
class NextDistCommand(_Queued):
    """Asks for the next-token distribution of an embed."""

    kind: ClassVar[str] = "next_dist"
    rows: ClassVar[int] = 1
    embed: int
    k: int
    future: Future

    def read(self) -> Touched:
        """The embed."""
        return [], [self.embed]

    def written(self) -> Touched:
        """Nothing."""
        return [], []


@dataclass(slots=True, eq=False)
class SetSamplerCommand(_Queued):
    """Makes a sampler."""

    kind: ClassVar[str] = "set_sampler"
    rows: ClassVar[int] = 1
    sampler: Sampler
    numbers: list[float]  # temperature, top-p, min-p, penalties: repetition, presence, frequency
    top_k: int
    seed: int  # 64 bits
    bias_tokens: Numbers  # [b]
    biases: list[float]  # [b]

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The sampler."""
        return [], [self.sampler.name]


@dataclass(slots=True, eq=False)
class FeedSamplerCommand(_Queued):
    """Tells a sampler of tokens that it did not choose."""

    kind: ClassVar[str] = "feed_sampler"
    sampler: Sampler
    tokens: Numbers  # [n]
    generated: bool

    @property
    def rows(self) -> int:
        """Tokens."""
        return len(self.tokens)

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The sampler."""
        return [], [self.sampler.name]


@dataclass(slots=True, eq=False)
class SampleCommand(_Queued):
    """Chooses a token after an embed. It runs even if nobody wants its result: the sampler moves on."""

    kind: ClassVar[str] = "sample"
    rows: ClassVar[int] = 1
    embed: int
    sampler: Sampler
    step: int
    mask: Mask | None
    future: Future
    on_token: Callable[[int | None], None] | None = None  # told the token, or None if there is none

    def read(self) -> Touched:
        """The embed."""
        return [], [self.embed]

    def written(self) -> Touched:
        """The sampler."""
        return [], [self.sampler.name]


@dataclass(slots=True, eq=False)
class EmbedSampledCommand(_Queued):
    """Embeds the token that a sampler chose last."""

    kind: ClassVar[str] = "embed_sampled"
    rows: ClassVar[int] = 1
    sampler: Sampler
    position: int
    embed: int

    def read(self) -> Touched:
        """The sampler."""
        return [], [self.sampler.name]

    def written(self) -> Touched:
        """The embed."""
        return [], [self.embed]


@dataclass(slots=True, eq=False)
class SwapOutCommand(_Queued):
    """Copies pages to host pages."""

    kind: ClassVar[str] = "swap_out"
    pages: Int32  # [n]
    hosts: Int32  # [n] host pages
    first_name: int  # of host pages

    @property
    def rows(self) -> int:
        """Pages."""
        return len(self.pages)

    def read(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []

    def written(self) -> Touched:
        """The host pages."""
        return (self.hosts + self.first_name).tolist(), []


@dataclass(slots=True, eq=False)
class SwapInCommand(_Queued):
    """Copies host pages to pages."""

    kind: ClassVar[str] = "swap_in"
    hosts: Int32  # [n] host pages
    pages: Int32  # [n]
    first_name: int  # of host pages

    @property
    def rows(self) -> int:
        """Pages."""
        return len(self.pages)

    def read(self) -> Touched:
        """The host pages."""
        return (self.hosts + self.first_name).tolist(), []

    def written(self) -> Touched:
        """The pages."""
        return self.pages.tolist(), []


Command: TypeAlias = (
    EmbedTextCommand
    | EmbedImageCommand
    | CopyEmbedCommand
    | ForwardCommand
    | CopyKvCommand
    | MaskKvCommand
    | NextDistCommand
    | SetSamplerCommand
    | FeedSamplerCommand
    | SampleCommand
    | EmbedSampledCommand
    | SwapOutCommand
    | SwapInCommand
)
LIGHT_KINDS = (
    "embed_text",
    "embed_image",
    "copy_embed",
    "copy_kv",
    "mask_kv",
    "next_dist",
    "set_sampler",
    "feed_sampler",
    "sample",
    "embed_sampled",
    "swap_out",
    "swap_in",
)
KINDS = (*LIGHT_KINDS, "forward")
ONCE_A_PLAN = "embed_image"  # not so light that a plan may have several batches


class Sync:
    """A mark in a queue: its future is ready once all before it has taken effect."""

    __slots__ = ("future",)

    def __init__(self, future: Future) -> None:
        self.future = future


class Mark(Sync):
    """A mark that no guest knows of: it changes nothing about its queue."""

    __slots__ = ()

    def __init__(self) -> None:
        """Has no future."""

    def passed(self) -> None:
        """Called when all before it has taken effect, or failed."""
        raise NotImplementedError

    def dropped(self) -> None:
        """Called instead if what is before it will never run, since its instance has ended."""
        raise NotImplementedError
