"""Messages between the control process and an inference worker.

A *plan* is an ordered list of batches that the worker runs back to back; its answer carries the
results of all of them. `pie_py.wire.messages` says how they travel. All arrays have elements of 4
bytes.

Physical names: a *page* is an index into the KV pool `[pages, page_size, ...]`; a *slot* of the KV
pool is `page * page_size + offset`; a *host page* is an index into the pool of
swapped pages; an *embed* is a row of the embed pool `[embeds, hidden]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32: TypeAlias = NDArray[np.int32]
Uint32: TypeAlias = NDArray[np.uint32]
Float32: TypeAlias = NDArray[np.float32]


def _nothing() -> Int32:
    return np.zeros(0, np.int32)


BATCH_TYPES: dict[str, type[Batch]] = {}


@dataclass(slots=True)
class Batch:
    """Commands of one kind that run together. A class is a kind: `EmbedText` is `embed_text`."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        BATCH_TYPES[cls.kind] = cls


@dataclass(slots=True)
class EmbedText(Batch):
    """Writes the token embedding and the position of `n` tokens into embeds."""

    tokens: Int32  # [n]
    positions: Int32  # [n]
    embeds: Int32  # [n]


@dataclass(slots=True)
class EmbedImage(Batch):
    """Decodes `n` image files and writes what the model reads of each, and positions, into
    embeds.
    """

    sizes: Int32  # [n, 2] width and height that each file's header tells
    lengths: Int32  # [n] bytes of each file
    files: Uint32  # the files, each padded to whole words
    positions: Int32  # [e] image by image; all the same for those of an image in rows and columns
    embeds: Int32  # [e] as many as the worker has measured


@dataclass(slots=True)
class CopyEmbed(Batch):
    """Copies `n` embeds; all are read before any is written."""

    sources: Int32  # [n]
    positions: Int32  # [n] of the copies; -1 is the source's
    embeds: Int32  # [n] that become copies, all different


@dataclass(slots=True)
class Forward(Batch):
    """Runs the transformer over `n` ragged sequences of inputs, `t` inputs in all.

    The contract's `forward` defines what an input attends to. `page_used` counts the slots of each
    input page that were filled before this forward; slots beyond it are never read.
    """

    input_starts: Int32  # [n + 1] offsets into inputs
    inputs: Int32  # [t] embeds, carrying hidden state and position
    page_starts: Int32  # [n + 1] offsets into pages
    pages: Int32  # [p] input pages, in the order given
    page_used: Int32  # [p] filled slots of each
    has_masked: Int32  # [n] 1 if any of the sequence's pages has a masked slot
    output_slots: Int32  # [t] KV slot that receives each input's key and value, or -1
    output_starts: Int32  # [n + 1] offsets into outputs
    outputs: Int32  # [o] embeds that receive the hidden states of each sequence's last inputs
    mask_starts: Int32  # [n + 1] offsets into mask; an empty range is the default rule
    mask: Int32  # run-length rows as in the contract
    # [n] slot of each sequence's adapter, or -1; empty if none has one
    adapters: Int32 = field(default_factory=_nothing)
    # [n] last inputs whose attention is wanted, and in what detail (an index into DETAILS); empty
    # if none is wanted
    observed: Int32 = field(default_factory=_nothing)
    detail: Int32 = field(default_factory=_nothing)
    # [n] samplers whose programs of the stage `attend` choose what a sequence reads, or -1, and how
    # many tokens each has chosen before: none, of a prompt, which reads all, and of whose weights
    # the program is told; empty if none has one
    attends: Int32 = field(default_factory=_nothing)
    attend_steps: Int32 = field(default_factory=_nothing)


# Attention averaged over layers and heads, over heads, or not at all.
DETAILS = ("total", "layers", "heads")


@dataclass(slots=True)
class CopyKv(Batch):
    """Copies `n` KV slots, with their positions and masks, in order."""

    sources: Int32  # [n] KV slots
    targets: Int32  # [n] KV slots


@dataclass(slots=True)
class MaskKv(Batch):
    """Sets the mask word of `n` pages: bit `i` hides slot `i`."""

    pages: Int32  # [n]
    masks: Uint32  # [n]


@dataclass(slots=True)
class ShiftKv(Batch):
    """Turns the keys of `n` slots to other positions."""

    slots: Int32  # [n] all different
    distances: Int32  # [n] added to their positions


@dataclass(slots=True)
class NextDist(Batch):
    """Computes the top-K next-token distribution of `n` output embeds."""

    embeds: Int32  # [n]
    k: Int32  # [n]


@dataclass(slots=True)
class ReadHidden(Batch):
    """Reads `n` means of hidden states."""

    starts: Int32  # [n + 1] offsets into embeds, no range empty
    embeds: Int32


@dataclass(slots=True)
class Encode(Batch):
    """Has an encoder make numbers of `n` texts, `t` tokens in all."""

    starts: Int32  # [n + 1] offsets into tokens, no range empty
    tokens: Int32  # [t]
    seconds: Int32  # [n] tokens before a pair's second text, or -1
    raw: Int32  # [n] 1: neither normalized nor through the head's activation


@dataclass(slots=True)
class SetSampler(Batch):
    """Puts new samplers into `n` slots of the sampler pool."""

    samplers: Int32  # [n] slots
    seeds: Uint32  # [n, 2] low and high word
    rows: Int32  # [n] rows of the memory of tokens, or -1: no program reads them
    # Their device programs, see `pie_py.wire.device_programs`.
    programs: Int32  # [n, 2] which text chooses, and which one of the stage `attend`, or -1
    text_lengths: Int32  # [p] bytes of each text
    texts: Uint32  # each padded to whole words
    given_lengths: Int32  # [n, 2] bytes of the programs' values
    given: Uint32  # each padded to whole words
    freed: Int32 = field(default_factory=_nothing)  # slots whose programs are not needed any more


@dataclass(slots=True)
class FeedSampler(Batch):
    """Tells `n` samplers of tokens that they did not choose, for programs that look back."""

    samplers: Int32  # [n]
    generated: Int32  # [n] 1 if the tokens count as generated, 0 if they were given
    steps: Uint32  # [n] how many tokens the sampler has chosen before
    starts: Int32  # [n + 1] offsets into tokens
    tokens: Int32


@dataclass(slots=True)
class ReadState(Batch):
    """Reads the state of `n` samplers that are device programs: what changes from step to step."""

    samplers: Int32  # [n]
    steps: Uint32  # [n] tokens chosen before


@dataclass(slots=True)
class WriteState(Batch):
    """Gives samplers that are device programs other values, one of a name in each of `n` rows."""

    samplers: Int32  # [n]
    steps: Uint32  # [n] tokens chosen before
    names: Int32  # [n] numbers of the program's names
    lengths: Int32  # [n] bytes of each value
    values: Uint32  # each padded to whole words


LOGIT_ROWS = 256  # that a worker keeps for choices to read


@dataclass(slots=True)
class KeepLogits(Batch):
    """Computes the logits after `n` output embeds and keeps them, for choices to mix in."""

    embeds: Int32  # [n]
    rows: Int32  # [n] of `LOGIT_ROWS`, which all models of a worker share


@dataclass(slots=True)
class Sample(Batch):
    """Chooses a token after each of `n` output embeds; no sampler twice, but for drafts.

    Where tokens are guessed, a sampler has several rows, one behind the other: the choice after
    each of its guesses that stands in the text before. Its last token is then that of the first
    row that differs from the guess, as if it had chosen step by step.
    """

    embeds: Int32  # [n]
    samplers: Int32  # [n] slots
    steps: Uint32  # [n] how many tokens the sampler has chosen before
    top: Int32  # [n] most likely tokens to report with each sample
    masked: Int32  # [n] row of masks, or -1
    masks: Uint32  # [m, w] bit t % 32 of word t // 32 allows token t
    # [n, OTHERS] rows of kept logits that are mixed in, or -1; empty if none is
    mixed: Int32 = field(default_factory=_nothing)
    # [n] the token that each row is guessed to choose, or -1, as the last of a sampler; empty if
    # none is guessed
    drafts: Int32 = field(default_factory=_nothing)


@dataclass(slots=True)
class EmbedSampled(Batch):
    """As `EmbedText`, of the tokens that samplers chose last."""

    samplers: Int32  # [n]
    positions: Int32  # [n]
    embeds: Int32  # [n]


@dataclass(slots=True)
class Again(Batch):
    """The step before it once more, one position on, for the same sequences or some of them.

    The step before is an `EmbedSampled`, a `Forward` and a `Sample` of the same `n` sequences, each
    of one input whose key and value are kept; or another `Again`. What follows is the same three
    batches, each with a result of its own (`pie_py.wire.steps`).
    """

    slots: Int32  # [n] KV slot of each sequence's next input, or -1: it has no further step


@dataclass(slots=True)
class SwapOut(Batch):
    """Copies `n` pages, with positions and masks, to pages of host memory."""

    pages: Int32  # [n]
    hosts: Int32  # [n] host pages, all different


@dataclass(slots=True)
class SwapIn(Batch):
    """Copies `n` pages of host memory, with positions and masks, to pages."""

    hosts: Int32  # [n] host pages
    pages: Int32  # [n] all different


@dataclass(slots=True)
class Clear(Batch):
    """Writes zeros where a batch that did not run was to write; forgets tokens."""

    slots: Int32  # [s] KV slots
    embeds: Int32  # [e]
    hosts: Int32  # [h] host pages
    samplers: Int32 = field(default_factory=_nothing)  # [q] whose last token is to be forgotten


@dataclass(slots=True)
class Plan:
    """An ordered list of batches for one model.

    Behind the batches of the first step may be any number of `Again`: further steps. The worker
    tells the results of each step as soon as they are there, and leaves out those steps that it has
    not begun when a `Cut` comes.
    """

    id: int
    model: str
    batches: list[Batch] = field(default_factory=list)


@dataclass(slots=True)
class Distributions:
    """Result of a `NextDist`: row `i` holds `k[i]` entries, most likely first, padded to the
    widest.
    """

    tokens: Int32  # [n, k_max]
    probabilities: Float32  # [n, k_max]


@dataclass(slots=True)
class Hidden:
    """Result of a `ReadHidden` or an `Encode`."""

    means: Float32  # [n, hidden]


@dataclass(slots=True)
class States:
    """Result of a `ReadState`: values as `pie_py.device_programs.bound` packs them."""

    lengths: Int32  # [n] bytes of each sampler's
    values: Uint32  # each padded to whole words


@dataclass(slots=True)
class Samples:
    """Result of a `Sample`. Log-probabilities are those of the model's own distribution."""

    tokens: Int32  # [n] -1 if none could be chosen
    logprobs: Float32  # [n]
    top_tokens: Int32  # [n, t] the most likely ones, padded to the widest
    top_logprobs: Float32  # [n, t]


@dataclass(slots=True)
class Attention:
    """Result of a `Forward` that observes: what the observed inputs of each sequence attended to.

    Rows of a sequence, as many as its detail has, cover the filled slots of its input pages and
    then its inputs; one after the other. The probabilities of the observed inputs are summed.
    """

    starts: Int32  # [n + 1] offsets into values, of each sequence
    values: Float32


Values: TypeAlias = Samples | Distributions | Attention | Hidden | States


@dataclass(slots=True)
class BatchResult:
    """The outcome of one batch. An error text means that none of it took effect reliably."""

    error: str | None = None
    # One of `Values`, by the batch: programs may wait for it, not only for the batch to end.
    values: Any = None
    refused: dict[int, str] | None = None  # rows that could not be carried out, the others were
    nanoseconds: int = 0  # time the worker spent in the batch


@dataclass(slots=True)
class PlanResult:
    """The worker's answer to a plan, one result per batch, three per `Again`; or a part of it that
    is ready before the rest.
    """

    id: int
    model: str
    results: list[BatchResult]
    first: int = 0  # batch that the first result belongs to
    last: bool = True  # whether the plan is done; with less than all results if it was cut
    idle_ns: int = 0  # between the end of the plan before, of any model, and the start of this one
    long_turns: int = 0  # of the worker so far, over the budget of those of its loop
    longest_turn: float = 0.0  # of those, in seconds


@dataclass(slots=True)
class ModelDescription:
    """A worker's description of a model at connect; control derives all else from it."""

    name: str
    architecture: str
    folder: str  # where tokenizer.json and the chat template lie
    page_size: int  # slots a page, 8 to 32
    kv_pages: int  # pages in the pool
    embeds: int  # embeds in the pool
    vocab_size: int
    hidden_size: int
    max_position: int  # positions 0 .. max_position - 1
    max_batch_tokens: int  # most inputs in one forward batch
    max_batch_commands: int  # most commands in one batch
    stop_tokens: list[int]
    bos_token: int | None
    dtype: str
    traits: list[str]
    # What its chat template writes where an image belongs; None if it reads text only.
    image_place: str | None = None
    image_rows: bool = False  # images have rows and columns: their embeds stand at one position
    draft_embeds: int = 0  # more of them, behind those, for guessed tokens of a plan
    samplers: int = 1024  # samplers in the pool
    count_rows: int = 1024  # most samplers that remember tokens, as penalties do
    host_pages: int = 0  # pages of host memory, for swapped ones
    turns: bool = False  # whether keys can be turned to other positions
    layers: int = 0
    heads: int = 0  # of queries
    kv_heads: int = 0  # of keys and values
    head_dim: int = 0  # numbers of each
    most_steps: int = 1  # of the same sequences in one plan
    adapters: list[str] = field(default_factory=list)  # loaded at start, in slots 0, 1, ...
    quantized: str | None = None  # method of the checkpoint
    few_bits: list[int] = field(default_factory=list)  # of weights that are kept so; else widened
    # What it was made for; else "embed", by a head "classify", or "mask": to fill gaps in texts.
    task: str = "generate"
    labels: list[str] = field(default_factory=list)  # of a head's numbers
    prompts: dict[str, str] = field(default_factory=dict)  # for embeddings, see `model-info`
    # Of embeddings: the "last" hidden state, the "first", the "mean", or not known.
    pooling: str | None = "last"
    no_attend: str = ""  # why it takes no programs of the stage `attend`; empty if it does
    no_layers: str = ""  # why no programs run in its layers; empty if they do
    no_adapters: str = ""  # why it takes none while it runs; empty if it does
    kv_costs: dict[str, Any] | None = None  # what the worker measured, see `calibration/costs.py`


@dataclass(slots=True)
class Hello:
    """First message of a worker: it is ready."""

    pid: int
    device: str
    models: list[ModelDescription]


@dataclass(slots=True)
class NoTokens:
    """Tells the worker which ids of a model's vocabulary are no tokens, so never to be chosen; it
    does not answer.
    """

    model: str
    ids: list[int]


@dataclass(slots=True)
class LoadAdapter:
    """Tells the worker to read an adapter into a free slot; it answers with `AdapterDone`."""

    model: str
    slot: int
    folder: str


@dataclass(slots=True)
class UnloadAdapter:
    """Tells the worker to forget an adapter that no later plan names; it does not answer."""

    model: str
    slot: int


@dataclass(slots=True)
class AdapterDone:
    """The worker's answer to `LoadAdapter`."""

    model: str
    slot: int
    error: str | None


@dataclass(slots=True)
class ReplaceWeights:
    """Tells the worker to put tensors of a file in place of a model's; it answers with
    `WeightsDone`.
    """

    model: str
    file: str


@dataclass(slots=True)
class WeightsDone:
    """The worker's answer to `ReplaceWeights`: with an error, nothing has changed."""

    model: str
    error: str | None


@dataclass(slots=True)
class MeasureImage:
    """Asks the worker what an image of a size takes; it answers with `ImageMeasured`."""

    model: str
    width: int
    height: int


@dataclass(slots=True)
class ImageMeasured:
    """The worker's answer to `MeasureImage`."""

    model: str
    width: int
    height: int
    embeds: int
    positions: int
    error: str | None


@dataclass(slots=True)
class Doing:
    """A step of a worker before its `Hello` that takes long the first time, for a person."""

    text: str


@dataclass(slots=True)
class Located:
    """Where a worker that starts has found a model's files: its tokenizer can be read meanwhile."""

    model: str
    folder: str


@dataclass(slots=True)
class Failed:
    """First and last message of a worker that cannot start (bad checkpoint, no memory)."""

    reason: str


@dataclass(slots=True)
class Cut:
    """Tells the worker to begin no further step of a plan: something else waits."""

    model: str
    plan: int


@dataclass(slots=True)
class Stop:
    """Tells the worker to exit."""


Message: TypeAlias = (
    Plan
    | PlanResult
    | Cut
    | Hello
    | Doing
    | Located
    | Failed
    | Stop
    | NoTokens
    | LoadAdapter
    | UnloadAdapter
    | AdapterDone
    | ReplaceWeights
    | WeightsDone
    | MeasureImage
    | ImageMeasured
)
