"""Attention on a CPU by our own kernels, over the pages where keys lie (`layers/step.c`).

A token attends alone, many of a prompt in tiles; what the beginnings of several sequences have in
common is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pie_inference.attention import (
    AttentionBackend,
    AttentionOptions,
    Chunk,
    PreparedAttention,
)
from pie_inference.attention.paging import step_rows
from pie_inference.attention.recurrent import PreparedStates
from pie_inference.attention.sequences import Sequences
from pie_inference.device import upload
from pie_inference.layers.step import RowsAttention, StepRows, can_attend
from pie_inference.memory.kv_cache import KvCache
from pie_inference.memory.states import States


def knows(cache: KvCache, heads: int, layers: Sequence[AttentionOptions]) -> bool:
    """True if the kernels know the keys of a cache, and the windows of layers."""
    odd = any(isinstance(one.window, Chunk) for one in layers)
    plain = cache.stored == cache.dtype and not cache.latent and not odd
    return plain and can_attend(heads, cache.head_dim, cache.dtype, cache.data.device)


class KernelAttention(AttentionBackend):
    """Serves a cache that the kernels know."""

    def __init__(
        self,
        cache: KvCache,
        heads: int,
        layers: Sequence[AttentionOptions],
        states: States | None = None,
        fixed: bool = False,
    ) -> None:
        """As of `TorchAttention`."""
        self.cache, self.layers = cache, layers
        self.kernel = RowsAttention(heads, cache.kv_heads, cache.head_dim, cache.dtype)
        self._states, self._fixed = states, fixed

    def prepare(self, sequences: Sequences) -> PreparedAttention:
        """See `AttentionBackend.prepare`."""
        self.cache.stamp(sequences.input_slots)
        nothing = np.zeros(0, np.int64)  # but attention is wanted
        found = _Prepared(self, step_rows(sequences, self.cache, self._fixed, wanted=nothing))
        if self._states is not None:
            found.states = PreparedStates(sequences, self._states)
        return found


class _Prepared(PreparedAttention):
    def __init__(self, backend: KernelAttention, rows: StepRows) -> None:
        self._backend = backend
        self._slots = upload(rows.slots, backend.cache.data.device)
        self._opened = backend.kernel.open(rows)

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        self._backend.cache.rows[layer].index_copy_(0, self._slots, keys_values)

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        options, pool = self._backend.layers[layer], self._backend.cache.rows[layer]
        scale, window = options.scale_of(queries.shape[2]), options.sliding
        own = None if sinks is None else sinks.float()
        more = scale, window, options.softcap, own
        return self._backend.kernel.run(self._opened, queries, pool, *more)
