"""Decoding steps as CUDA graphs: recorded once for each batch bucket, replayed with other data.

A graph repeats its kernels on the same addresses. So what changes from step to step lies in buffers
that never move: embeds to read and to write, positions, slots, the page table. A step of fewer
sequences than its graph has rows is filled up with rows that attend to a padding page and write to
a padding embed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import torch
from rich.console import Console
from rich.progress import track

from pie_inference.attention import AttentionOptions, PreparedAttention
from pie_inference.attention.flashinfer import PLAN_BYTES, FlashInferAttention, Slots, window_left
from pie_inference.attention.paging import PageTable
from pie_inference.attention.sequences import Sequences
from pie_inference.device import Fence, Int32, Int64, current, pinned
from pie_inference.layers.step import LayerChange, LayerWatch
from pie_inference.memory.embeds import EmbedPool
from pie_inference.models.network import Network
from pie_py.wire.plan import Forward

log = structlog.get_logger("pie.worker")

# Records what it is given to run, on the device, and returns what runs it again.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

INPUTS, POSITIONS, SLOTS, OUTPUTS = range(4)  # rows of a step's buffer


class DecodeGraphs:
    """The recorded steps of one model."""

    def __init__(
        self,
        network: Network,
        embeds: EmbedPool,
        attention: FlashInferAttention,
        sizes: Sequence[int],
        capture: Capture,
        track: Callable[[Sequence[int]], Iterable[int]] = lambda sizes: sizes,
    ) -> None:
        """Records a step of each of the sizes, the largest first: the others use its memory. The
        network is `graphable`; `track` shows how far it is.
        """
        self._attention = attention
        self._embeds = embeds
        cache = attention.cache
        # Room for every page once and a padding page for each row. Sequences may share pages, so
        # that a table may be longer: `run` refuses such a step, and it is run without a graph.
        room = max(cache.padding + 1, 1) + max(sizes)
        device = attention.device
        self._entries = torch.zeros(room, dtype=torch.int32, device=device)
        self._sent = np.zeros(0, np.int32)  # what of a table the device has
        plans = {
            v: torch.zeros(PLAN_BYTES, dtype=torch.uint8, device=device) for v in attention.variants
        }
        self.steps: dict[int, Step] = {}
        start = time.perf_counter()
        for size in track(sorted(sizes, reverse=True)):
            step = Step(network, embeds, attention, size, self._entries, plans)
            self._fill(step, _NOTHING, _empty_table(cache.page_size))
            step.replay = capture(step.run)
            self.steps[size] = step
        self.sizes = sorted(self.steps)
        self.seconds = time.perf_counter() - start

    def run(
        self,
        batch: Forward,
        sequences: Sequences,
        positions: Int32,
        watches: Sequence[LayerWatch] = (),
        changes: LayerChange | None = None,
    ) -> bool:
        """Runs a checked forward and writes its outputs, if there is a graph for it: of one that
        something watches or changes there is none.
        """
        count = batch.inputs.size
        if count > self.sizes[-1] or batch.observed.any() or (batch.adapters >= 0).any():
            return False
        if watches or changes is not None:
            return False
        table = self._attention.plain_decode(sequences)
        if table is None:
            return False
        size = next(size for size in self.sizes if size >= count)
        if table.entries.size + size - count > self._entries.shape[0]:
            return False
        outputs = np.full(count, self._embeds.padding, np.int64)
        outputs[np.diff(batch.output_starts) == 1] = batch.outputs
        step = self.steps[size]
        rows = np.stack([batch.inputs, positions, sequences.input_slots, outputs])
        self._attention.cache.stamp(sequences.input_slots)
        self._fill(step, rows, table)
        step.replay()
        return True

    def _fill(self, step: Step, rows: Int64, table: PageTable) -> None:
        """Puts a step's data where its graph reads it, and plans its attention."""
        cache = self._attention.cache
        extra = step.size - rows.shape[1]
        padding = np.array(
            [[self._embeds.padding], [0], [cache.padding * cache.page_size], [self._embeds.padding]]
        )
        entries = np.concatenate([table.entries, np.full(extra, cache.padding, np.int32)])
        starts = np.concatenate([table.starts, table.starts[-1] + np.arange(1, extra + 1)])
        last = np.concatenate([table.last, np.ones(extra)])
        # Plans go through pinned buffers of the wrappers, which the next plan overwrites: the
        # copies of this step's last plan must be done.
        step.fence.wait()
        filled = np.hstack([rows, np.repeat(padding, extra, axis=1)])
        step.rows.copy_(pinned(filled, self._attention.device), non_blocking=True)
        self._send(entries)
        self._plan(step, starts.astype(np.int32), last.astype(np.int32), entries.size)
        step.fence.record()

    def _send(self, entries: Int32) -> None:
        """Brings the table on the device up to date: between two steps little of it changes."""
        first, end = 0, entries.size
        if self._sent.size >= end:
            changed = np.flatnonzero(self._sent[:end] != entries)
            if not changed.size:
                return
            first, end = int(changed[0]), int(changed[-1]) + 1
        changed_part = pinned(entries[first:end], self._attention.device)
        self._entries[first:end].copy_(changed_part, non_blocking=True)
        self._sent = entries

    def _plan(self, step: Step, starts: Int32, last: Int32, entries: int) -> None:
        a = self._attention
        both = pinned(np.concatenate([starts, last]), a.device)
        step.table.copy_(both, non_blocking=True)
        host_starts, host_last = both[: step.size + 1], both[step.size + 1 :]
        for v, wrapper in step.wrappers.items():
            arguments: list[Any] = [
                host_starts,
                self._entries[:entries],
                host_last,
                a.heads,
                a.cache.kv_heads,
                a.cache.head_dim,
                a.cache.page_size,
            ]
            # The short form trusts the buffers to be filled, as they are by now. It is for wrappers
            # that have been planned once before, in the long form.
            if step.planned:
                a.library.fast_decode_plan(
                    wrapper,
                    *arguments,
                    window_left=window_left(v),
                    global_override_indptr_cpu=host_starts,
                    **a.common(v),
                )
            else:
                wrapper.plan(*arguments, window_left=window_left(v), **a.common(v))
        step.planned = True


_NOTHING = np.zeros((4, 0), np.int64)


def _empty_table(page_size: int) -> PageTable:
    none = np.zeros(0, np.int32)
    return PageTable(page_size, np.zeros(1, np.int32), none, none)


class Step(PreparedAttention):
    """A step of one size: its buffers, and attention as its graph has it."""

    def __init__(
        self,
        network: Network,
        embeds: EmbedPool,
        attention: FlashInferAttention,
        size: int,
        entries: torch.Tensor,
        plans: dict[AttentionOptions, torch.Tensor],
    ) -> None:
        self.size = size
        self.rows = torch.zeros((4, size), dtype=torch.int64, device=attention.device)
        self.table = torch.zeros(2 * size + 1, dtype=torch.int32, device=attention.device)
        self.fence = Fence(attention.device)
        self.planned = False
        self.replay: Callable[[], None] = self.run
        self._network = network
        self._embeds = embeds
        self._attention = attention
        self._slots = Slots(self.rows[SLOTS])
        self.wrappers: dict[AttentionOptions, Any] = {}
        for v in attention.variants:
            wrapper = attention.library.BatchDecodeWithPagedKVCacheWrapper(
                attention.workspace,
                "NHD",
                use_cuda_graph=True,
                use_tensor_cores=attention.tensor_cores,
                paged_kv_indptr_buffer=self.table[: size + 1],
                paged_kv_indices_buffer=entries,
                paged_kv_last_page_len_buffer=self.table[size + 1 :],
            )
            # Steps of all sizes share one buffer per kind of layer: they run one after the other.
            wrapper.reset_workspace_buffer(attention.workspace, plans[v])
            self.wrappers[v] = wrapper

    def run(self) -> None:
        """The step: what a graph records."""
        self._slots.refresh()
        hidden = self._embeds.hidden.index_select(0, self.rows[INPUTS])
        found = self._network.forward(hidden, self.rows[POSITIONS], self, None)
        self._embeds.hidden.index_copy_(0, self.rows[OUTPUTS], found)

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """See `PreparedAttention.store`."""
        self._attention.store(layer, self._slots, keys_values)

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `PreparedAttention.attend`."""
        attention = self._attention
        out = queries.new_empty(queries.shape)
        wrapper = self.wrappers[attention.layers[layer]]
        wrapper.run(queries, attention.by_page[layer], out=out)
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class GraphCapture:
    """Records CUDA graphs that share one pool of memory."""

    pool: Any
    stream: torch.cuda.Stream

    @classmethod
    def on(cls, device: torch.device) -> GraphCapture:
        """Makes one for a device."""
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return cls(torch.cuda.graph_pool_handle(), stream)

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """See `Capture`. Runs it first, for lazy set-up may do what cannot be recorded."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                run()
        current.wait_stream(self.stream)
        torch.cuda.synchronize(self.stream.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads may ask the device for things meanwhile: that of NCCL does.
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            run()
        return graph.replay


def record(
    network: Network, embeds: EmbedPool, attention: FlashInferAttention, sizes: Sequence[int]
) -> DecodeGraphs:
    """Records decoding steps of such batch sizes, with a progress bar on a terminal."""

    def shown(sizes: Sequence[int]) -> Iterable[int]:
        if len(sizes) == 1 or not sys.stderr.isatty():
            return sizes
        return track(sizes, "recording decoding steps", console=Console(stderr=True))

    device = attention.device
    torch.cuda.synchronize(device)
    free, start = torch.cuda.mem_get_info(device)[0], time.perf_counter()
    with current(device):
        graphs = DecodeGraphs(network, embeds, attention, sizes, GraphCapture.on(device), shown)
    torch.cuda.synchronize(device)
    taken = free - torch.cuda.mem_get_info(device)[0]
    log.info(
        "decoding steps recorded",
        sizes=len(sizes),
        largest=max(sizes),
        megabytes=taken >> 20,
        seconds=round(time.perf_counter() - start, 1),
    )
    return graphs
