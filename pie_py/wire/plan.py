"""Messages between the control process and an inference worker.

A *plan* is an ordered list of batches that the worker runs back to back; its answer carries the
results of all of them. A message is a list of ZeroMQ frames: a msgpack header, then the raw bytes of
every array that the header names, in order. No pickling, no per-element work.

Physical names: a *page* is an index into the KV pool `[pages, page_size, ...]`; a *slot* of the KV
pool is `page * page_size + offset`; an *embed* is a row of the embed pool `[embeds, hidden]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

Int32: TypeAlias = NDArray[np.int32]
Uint32: TypeAlias = NDArray[np.uint32]
Float32: TypeAlias = NDArray[np.float32]
Frame: TypeAlias = bytes | memoryview


@dataclass(slots=True)
class EmbedText:
    """Writes the token embedding and the position of `n` tokens into embeds."""

    kind: ClassVar[str] = "embed_text"
    tokens: Int32  # [n]
    positions: Int32  # [n]
    embeds: Int32  # [n]


@dataclass(slots=True)
class Forward:
    """Runs the transformer over `n` ragged sequences of inputs, `t` inputs in all.

    The contract's `forward` defines what an input attends to. `page_used` counts the slots of each
    input page that were filled before this forward; slots beyond it are never read.
    """

    kind: ClassVar[str] = "forward"
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


@dataclass(slots=True)
class CopyKv:
    """Copies `n` KV slots, with their positions and masks, in order."""

    kind: ClassVar[str] = "copy_kv"
    sources: Int32  # [n] KV slots
    targets: Int32  # [n] KV slots


@dataclass(slots=True)
class MaskKv:
    """Sets the mask word of `n` pages: bit `i` hides slot `i`."""

    kind: ClassVar[str] = "mask_kv"
    pages: Int32  # [n]
    masks: Uint32  # [n]


@dataclass(slots=True)
class NextDist:
    """Computes the top-K next-token distribution of `n` output embeds."""

    kind: ClassVar[str] = "next_dist"
    embeds: Int32  # [n]
    k: Int32  # [n]


Batch: TypeAlias = EmbedText | Forward | CopyKv | MaskKv | NextDist
BATCH_TYPES: dict[str, type[Any]] = {
    t.kind: t for t in (EmbedText, Forward, CopyKv, MaskKv, NextDist)
}


@dataclass(slots=True)
class Plan:
    """An ordered list of batches for one model."""

    id: int
    model: str
    batches: list[Batch] = field(default_factory=list)


@dataclass(slots=True)
class Distributions:
    """Result of a `NextDist`: row `i` holds `k[i]` entries, most likely first, padded to the widest."""

    tokens: Int32  # [n, k_max]
    probabilities: Float32  # [n, k_max]


@dataclass(slots=True)
class BatchResult:
    """What became of one batch. An error text means that none of it took effect reliably."""

    error: str | None = None
    distributions: Distributions | None = None
    nanoseconds: int = 0  # time the worker spent in the batch


@dataclass(slots=True)
class PlanResult:
    """The worker's answer to a plan, one result a batch."""

    id: int
    model: str
    results: list[BatchResult]


@dataclass(slots=True)
class ModelDescription:
    """What a worker tells of a model when it connects; the control layer derives all else from it."""

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


@dataclass(slots=True)
class Hello:
    """First message of a worker: it is ready."""

    pid: int
    device: str
    models: list[ModelDescription]


@dataclass(slots=True)
class Failed:
    """First and last message of a worker that cannot start (bad checkpoint, no memory)."""

    reason: str


@dataclass(slots=True)
class Stop:
    """Tells the worker to exit."""


Message: TypeAlias = Plan | PlanResult | Hello | Failed | Stop


def encode(message: Message) -> list[Frame]:
    """Turns a message into ZeroMQ frames. The arrays' memory is referenced, not copied."""
    frames: list[Frame] = [b""]
    header: tuple[Any, ...]
    match message:
        case Plan():
            batches = [(b.kind, _put(b, frames)) for b in message.batches]
            header = ("plan", message.id, message.model, batches)
        case PlanResult():
            results = [
                (
                    r.error,
                    r.nanoseconds,
                    None if r.distributions is None else _put(r.distributions, frames),
                )
                for r in message.results
            ]
            header = ("result", message.id, message.model, results)
        case Hello():
            models = [{f.name: getattr(m, f.name) for f in fields(m)} for m in message.models]
            header = ("hello", message.pid, message.device, models)
        case Failed():
            header = ("failed", message.reason)
        case Stop():
            header = ("stop",)
    frames[0] = msgpack.packb(header)
    return frames


def decode(frames: Sequence[Frame]) -> Message:
    """Reads a message back. Arrays are views of the frames.

    Raises:
        ValueError: if the frames are not a message of this protocol.
    """
    header = msgpack.unpackb(frames[0], use_list=True)
    rest = iter(frames[1:])
    match header:
        case ["plan", number, model, batches]:
            return Plan(number, model, [_take(BATCH_TYPES[kind], d, rest) for kind, d in batches])
        case ["result", number, model, results]:
            return PlanResult(
                number,
                model,
                [
                    BatchResult(e, None if d is None else _take(Distributions, d, rest), ns)
                    for e, ns, d in results
                ],
            )
        case ["hello", pid, device, models]:
            return Hello(pid, device, [ModelDescription(**m) for m in models])
        case ["failed", reason]:
            return Failed(reason)
        case ["stop"]:
            return Stop()
    raise ValueError(f"not a message of the worker protocol: {header!r:.200}")


def _put(record: Any, frames: list[Frame]) -> list[tuple[str, tuple[int, ...]]]:
    """Appends a record's arrays to the frames and describes them: `(dtype, shape)` each."""
    described = []
    for f in fields(record):
        array = np.ascontiguousarray(getattr(record, f.name))
        described.append((array.dtype.str, array.shape))
        frames.append(memoryview(array).cast("B") if array.size else b"")
    return described


def _take(record: type[Any], described: list[Any], frames: Any) -> Any:
    """Builds a record from its arrays' descriptions and the next frames."""
    return record(*(np.frombuffer(next(frames), dtype=d).reshape(shape) for d, shape in described))
