"""A served model, which handlers work on; what a handler is; checks of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.adapters import AdapterTable
from pie_inference.attention import AttentionBackend
from pie_inference.device import DeviceFuture, Int32
from pie_inference.errors import BadBatch
from pie_inference.layers.step import RowAttention
from pie_inference.memory.embeds import EmbedPool
from pie_inference.memory.host_memory import HostMemory
from pie_inference.memory.key_bounds import KeyBounds
from pie_inference.memory.kv_cache import KvCache
from pie_inference.models.fused_steps import FusedSteps
from pie_inference.models.network import Network
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_inference.sampling.pool import SamplerPool
from pie_inference.sampling.remembered import SavedLogits
from pie_py.wire.plan import BatchResult, Clear, ModelDescription

if TYPE_CHECKING:  # machines without a GPU do not load what is for GPUs, others no transformers
    from pie_inference.cuda.decode_graphs import DecodeGraphs
    from pie_inference.cuda.fused_sampling import FusedSampling
    from pie_inference.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A network, its KV cache and embeds, and the attention between them."""

    description: ModelDescription
    network: Network
    cache: KvCache
    embeds: EmbedPool
    attention: AttentionBackend
    device: torch.device
    samplers: SamplerPool
    saved_logits: SavedLogits
    host: HostMemory
    adapters: AdapterTable
    graphs: DecodeGraphs | None = None  # of decoding steps, on a GPU
    fused_steps: FusedSteps | None = None  # of decoding, on a CPU
    fused_sampling: FusedSampling | None = None  # on a GPU
    key_bounds: KeyBounds | None = None  # if programs may choose what is read
    row_attention: RowAttention | None = None  # on a CPU, for the same
    ranks: Ranks = ALONE  # that compute it together


@dataclass(frozen=True, slots=True)
class ServedEncoder:
    """A model without a cache, which makes numbers of whole texts."""

    description: ModelDescription
    encoder: Encoder
    device: torch.device


Served: TypeAlias = ServedModel | ServedEncoder

NONE = np.zeros(0, np.int32)


def writes_nothing(model: ServedModel, batch: Any) -> Clear:
    """For a kind that writes no embed, slot or host page."""
    return Clear(NONE, NONE, NONE)


def writes_embeds(model: ServedModel, batch: Any) -> Clear:
    """For a kind whose batch names all that it writes as `embeds`."""
    return Clear(NONE, batch.embeds, NONE)


@dataclass(slots=True)  # not frozen, for benchmarks put functions that measure around `run`
class Handler:
    """How batches of one kind are run. The registry knows which kind, so `Any` is that kind and its
    model.
    """

    # Returns None if there is no result but that the batch has been run.
    run: Callable[[Any, Any], DeviceFuture[BatchResult] | None]
    # What a batch was to write. It is cleared if the batch fails: memory that changes its owner
    # would else show the new owner what the earlier one has left there.
    writes: Callable[[ServedModel, Any], Clear] = writes_nothing
    # Whether the commands behind it wait long enough for results before it to go ahead of it.
    long: bool = False


# Batches name memory that exists: that is checked before their indices reach a tensor. The control
# process decides what a program may ask for, and none of that is checked here again, but a worker
# could not survive its bugs: on a GPU an index outside a tensor ends the process and every model in
# it, and on a CPU a negative one reads the memory of another program.


def require_below(what: str, values: Int32, limit: int) -> None:
    """Raises `BadBatch` unless every value is in `0 .. limit - 1`."""
    # As unsigned numbers, negative ones are larger than any limit: one comparison serves both.
    if values.size and int(values.view(np.uint32).max()) >= limit:
        raise BadBatch(f"{what}: {_worst(values, limit)} is outside 0 .. {limit - 1}")


def require_offsets(what: str, starts: Int32, count: int, end: int) -> None:
    """Raises `BadBatch` unless `starts` is `count + 1` ascending offsets from 0 to `end`."""
    if (
        starts.shape != (count + 1,)
        or starts[0] != 0
        or starts[-1] != end
        or (count > 1 and (starts[1:] < starts[:-1]).any())
    ):
        raise BadBatch(f"{what}: not {count + 1} ascending offsets from 0 to {end}")


def require_lengths(what: str, *arrays: NDArray[np.generic]) -> None:
    """Raises `BadBatch` unless the arrays are vectors of one length."""
    shape = arrays[0].shape
    for array in arrays:
        if array.shape == shape and array.ndim == 1:
            continue
        raise BadBatch(f"{what}: arrays of different shapes {[a.shape for a in arrays]}")


def _worst(values: Int32, limit: int) -> int:
    return int(values[(values < 0) | (values >= limit)][0])
