"""A loaded model with its pools: what the handlers work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.adapters.table import AdapterTable
from pie_inference.attention.base import AttentionBackend
from pie_inference.device.upload import upload_index
from pie_inference.memory.embeds import EmbedPool
from pie_inference.memory.host_memory import HostMemory
from pie_inference.memory.kv_cache import KvCache
from pie_inference.models.base import Model
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_inference.sampling.kept_logits import KeptLogits
from pie_inference.sampling.pool import SamplerPool
from pie_py.wire.plan import ModelDescription

if TYPE_CHECKING:  # machines without a GPU do not load what is for GPUs
    from pie_inference.cuda.decode_graphs import DecodeGraphs
    from pie_inference.cuda.fused_sampling import FusedSampling


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A network, its KV cache and embeds, and the attention between them."""

    description: ModelDescription
    network: Model
    cache: KvCache
    embeds: EmbedPool
    attention: AttentionBackend
    device: torch.device
    samplers: SamplerPool
    kept_logits: KeptLogits
    host: HostMemory
    adapters: AdapterTable
    graphs: DecodeGraphs | None = None  # of decoding steps, on a GPU
    fused_sampling: FusedSampling | None = None  # on a GPU
    ranks: Ranks = ALONE  # that compute it together

    def index(self, array: NDArray[np.int32]) -> torch.Tensor:
        """An index array as an int64 tensor on the model's device."""
        return upload_index(array, self.device)
