"""Attention by FlashInfer's kernels for paged KV caches (Ye et al. 2025), for NVIDIA GPUs.

The sequences of a forward are grouped by the arguments that the kernels take for them:

- `decode`: one input; `prefill`: several, causal by their order.
- With an explicit mask, or positions that do not follow the order under a sliding window:
  `filtered`, one input, whose table lacks the hidden keys; `masked`, several.
- Entries of the tables are pages where they can be, else slots (see `paging.py`).

Each group has a wrapper of its own for each kind of layer: it plans on the host once a forward, and
runs in every layer. A wrapper's plan goes through a pinned buffer that the next one overwrites;
`Fence` makes the host wait for the copy, which is short unless one forward follows another at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from pie_inference.attention import AttentionBackend, AttentionOptions, PreparedAttention
from pie_inference.attention.paging import (
    PageTable,
    filtered,
    page_table,
    slot_table,
)
from pie_inference.attention.sequences import Sequences, short_offsets
from pie_inference.device import Bool, Fence, Int64, pinned, upload, upload_index
from pie_inference.memory.kv_cache import KvCache
from pie_py.config.model import FlashInferConfig

CORE_GROUPS = (1, 2, 3, 4, 8)  # query heads a key head that decoding without tensor cores can do
TENSOR_CORES_FROM = 4  # query heads a key head from which tensor cores decode faster
PLAN_BYTES = 8 << 20  # of a wrapper's plan
WORKSPACE_BYTES = 256 << 20  # for parts of attention that are put together

Kind = Literal["decode", "filtered", "prefill", "masked"]


def decodes_on_tensor_cores(config: FlashInferConfig, heads: int, kv_heads: int) -> bool:
    """True if decoding does; where the other kernels lack the number of heads it has to."""
    group = heads // kv_heads
    if group not in CORE_GROUPS or config.decode == "tensor-cores":
        return True
    return config.decode == "auto" and group >= TENSOR_CORES_FROM


@dataclass(frozen=True, slots=True)
class _Task:
    """The arguments of a group's kernels for one kind of layer."""

    table: PageTable
    window_left: int  # keys before an input that it sees, -1 for all
    mask: Bool | None = None  # [inputs x keys of each sequence, one after the other]
    blank: Int64 | None = None  # rows of the group that see nothing


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that one launch per layer serves."""

    paged: bool
    rows: torch.Tensor | slice  # of the forward's inputs
    runs: dict[AttentionOptions, _Run]


@dataclass(frozen=True, slots=True)
class _Run:
    """A planned wrapper."""

    wrapper: Any
    blank: torch.Tensor | None


def least_workspace(cache: KvCache, heads: int, graph_batch: int) -> int:
    """Bytes for the parts of attention that kernels of the second generation put together.

    FlashInfer 0.6.6, `PrefillPlan` in scheduler.cuh: a float32 output and a sum for every row of
    every tile. Tiles are of 16, 64 or 128 rows, a row being a query head of those that share a key
    head; contexts are divided among two tiles a multiprocessor, and a recorded step has room for
    all that it may need.
    """
    if cache.data.device.type != "cuda":
        return 0
    group = heads // cache.kv_heads
    processors = torch.cuda.get_device_properties(cache.data.device).multi_processor_count
    divided = 2 * processors // cache.kv_heads
    small = 16 if group <= 16 else 64
    recorded = -(-graph_batch * group // small) + graph_batch - 1
    rows = max(max(divided, recorded) * small, divided * (128 if cache.head_dim < 256 else 64))
    return heads * rows * (cache.head_dim + 1) * 4 + (1 << 20)


class FlashInferAttention(AttentionBackend):
    """Plans and runs FlashInfer's wrappers over the pool."""

    def __init__(
        self,
        cache: KvCache,
        heads: int,
        layers: Sequence[AttentionOptions],
        config: FlashInferConfig,
        library: Any,
        graph_batch: int = 1,
    ) -> None:
        """Serves a cache, whose keys are shared by `heads` query heads, with the module
        `flashinfer`: see `loading/choices.py`. A recorded step has `graph_batch` sequences at most.
        """
        self.cache = cache
        self.heads = heads
        self.layers = layers
        self.variants = tuple(dict.fromkeys(layers))
        self.device = cache.data.device
        self._config = config
        self.library = library
        self.tensor_cores = decodes_on_tensor_cores(config, heads, cache.kv_heads)
        # Every wrapper's scratch memory: they run one after the other, in one stream.
        size = max(WORKSPACE_BYTES, least_workspace(cache, heads, graph_batch))
        self.workspace = torch.zeros(size, dtype=torch.uint8, device=self.device)
        self._wrappers: dict[tuple[Kind, bool, AttentionOptions], tuple[Any, Fence]] = {}
        stored = cache.data.view(cache.stored)
        heads_of = stored.unbind(2)  # keys and values, [layers, slots, kv_heads, head_dim]
        self.by_slot = [
            tuple(part[i].unsqueeze(1) for part in heads_of) for i in range(len(layers))
        ]
        self.by_page = [
            tuple(
                part[i].view(-1, cache.page_size, cache.kv_heads, cache.head_dim)
                for part in heads_of
            )
            for i in range(len(layers))
        ]

    def prepare(self, sequences: Sequences) -> PreparedAttention:
        """Groups the sequences and plans each group's kernels."""
        self.cache.stamp(sequences.input_slots)
        table, aligned = page_table(sequences, self.cache.page_size)
        inputs = np.diff(sequences.input_starts)
        odd = self._odd(sequences) if any(v.sliding is not None for v in self.variants) else None
        explicit = np.zeros(inputs.size, np.bool_)
        explicit[list(sequences.visible)] = True
        # An input that sees a part of its keys is one whose table lacks the others.
        filtering = explicit if odd is None else explicit | odd
        masked = filtering & (inputs > 1)
        groups = []
        plain: tuple[tuple[Kind, Bool], ...] = (
            ("decode", (inputs == 1) & ~filtering),
            ("prefill", (inputs > 1) & ~masked),
        )
        for kind, chosen in plain:
            for paged, of in ((True, chosen & aligned), (False, chosen & ~aligned)):
                members = np.flatnonzero(of)
                if members.size:
                    own = table.select(members) if paged else slot_table(sequences, members)
                    tasks = {v: _Task(own, window_left(v)) for v in self.variants}
                    groups.append(self._group(sequences, kind, paged, members, tasks))
        members = np.flatnonzero(filtering & (inputs == 1))
        if members.size:
            tasks = self._filtered(sequences, members)
            groups.append(self._group(sequences, "filtered", False, members, tasks))
        members = np.flatnonzero(masked)
        if members.size:
            tasks = self._masked(sequences, members)
            groups.append(self._group(sequences, "masked", False, members, tasks))
        return _Prepared(self, sequences.input_slots, groups)

    def plain_decode(self, s: Sequences) -> PageTable | None:
        """The table of sequences that a group `decode` by page would serve; None for others."""
        if s.visible or (np.diff(s.input_starts) != 1).any():
            return None
        table, aligned = page_table(s, self.cache.page_size)
        if not aligned.all():
            return None
        if any(v.sliding is not None for v in self.variants) and self._odd(s).any():
            return None
        return table

    def _odd(self, s: Sequences) -> Bool:
        """Sequences in which a window of positions is not one of the order, `[n]`."""
        every = np.arange(s.input_starts.size - 1)
        table = slot_table(s, every)
        positions = self.cache.positions[table.entries]
        counts = np.diff(table.starts)
        order = np.arange(positions.size) - np.repeat(table.starts[:-1], counts)
        some = counts > 0
        strays = positions - order != np.repeat(positions[table.starts[:-1][some]], counts[some])
        # Where nothing is further back than a window, in positions or in the order, there is none.
        near = min(v.sliding for v in self.variants if v.sliding is not None)
        own = np.zeros(every.size, np.int32)
        inputs = np.diff(s.input_starts)
        np.maximum.at(own, np.repeat(every, inputs), s.positions)
        odd: Bool = np.bincount(np.repeat(every, counts)[strays], minlength=every.size) > 0
        return odd & ~((own < near) & (counts <= near))

    def _filtered(self, s: Sequences, members: Int64) -> dict[AttentionOptions, _Task]:
        """Of single inputs with a rule: their tables hold what they see."""
        table = slot_table(s, members)
        owners = np.repeat(np.arange(members.size), np.diff(table.starts))
        seen = np.ones(table.entries.size, np.bool_)
        for at, i in enumerate(members.tolist()):
            rule = s.visible.get(i)
            if rule is not None:
                end = int(table.starts[at + 1])
                seen[end - rule.shape[1] : end] = rule[0]
        own = s.positions[s.input_starts[members]][owners]
        positions = self.cache.positions[table.entries]
        tasks = {}
        for v in self.variants:
            visible = seen if v.sliding is None else seen & (positions > own - v.sliding)
            narrow, blank = filtered(table, visible)
            # The kernels of layers with windows want one: it hides nothing.
            left = -1 if v.sliding is None else table.entries.size
            tasks[v] = _Task(narrow, left, None, blank if blank.size else None)
        return tasks

    def _masked(self, s: Sequences, members: Int64) -> dict[AttentionOptions, _Task]:
        """Of sequences with a rule: what each input sees of their keys."""
        table = slot_table(s, members)
        # What each sequence's inputs see, windows aside; positions of these, and of keys.
        parts = []
        for at, i in enumerate(members.tolist()):
            own = s.positions[slice(*s.input_starts[i : i + 2].tolist())]
            slots = table.entries[slice(*table.starts[at : at + 2].tolist())]
            parts.append((s.seen(i), own[:, None], self.cache.positions[slots]))
        tasks = {}
        for v in self.variants:
            masks = [
                seen if v.sliding is None else seen & (keys > own - v.sliding)
                for seen, own, keys in parts
            ]
            left = -1 if v.sliding is None else table.entries.size
            blank = np.flatnonzero(np.concatenate([~mask.any(axis=1) for mask in masks]))
            mask = np.concatenate([mask.reshape(-1) for mask in masks])
            tasks[v] = _Task(table, left, mask, blank if blank.size else None)
        return tasks

    def _group(
        self,
        s: Sequences,
        kind: Kind,
        paged: bool,
        members: Int64,
        tasks: dict[AttentionOptions, _Task],
    ) -> _Group:
        inputs = np.diff(s.input_starts)[members]
        firsts = s.input_starts[members]
        first, end = int(firsts[0]), int(firsts[-1] + inputs[-1])
        rows: torch.Tensor | slice = slice(first, end)
        if end - first != int(inputs.sum()):
            every = np.repeat(firsts - short_offsets(inputs)[:-1], inputs) + np.arange(
                int(inputs.sum())
            )
            rows = upload_index(every, self.device)
        runs = {v: self._plan(kind, paged, v, task, inputs) for v, task in tasks.items()}
        return _Group(paged, rows, runs)

    def _plan(
        self, kind: Kind, paged: bool, v: AttentionOptions, task: _Task, inputs: Int64
    ) -> _Run:
        wrapper, fence = self._wrapper(kind, paged, v)
        fence.wait()
        table = task.table
        entries = upload(table.entries, self.device)
        sizes = (self.heads, self.cache.kv_heads, self.cache.head_dim, table.page_size)
        options = {"window_left": task.window_left, **self.common(v)}
        if kind in ("decode", "filtered"):
            starts, last = (pinned(part, self.device) for part in (table.starts, table.last))
            wrapper.plan(starts, entries, last, *sizes, **options)
        else:
            mask = None if task.mask is None else upload(task.mask, self.device)
            # With a mask the library packs it on the device, by offsets that lie there, too.
            place = partial(pinned if mask is None else upload, device=self.device)
            wrapper.plan(
                place(short_offsets(inputs)),
                place(table.starts),
                entries,
                place(table.last),
                *sizes,
                custom_mask=mask,
                causal=mask is None,
                **options,
            )
        fence.record()
        return _Run(wrapper, None if task.blank is None else upload_index(task.blank, self.device))

    def common(self, v: AttentionOptions) -> dict[str, Any]:
        """Arguments of every plan that follow from a kind of layer."""
        return {
            "logits_soft_cap": v.softcap,
            "sm_scale": v.scale_of(self.cache.head_dim),
            "q_data_type": self.cache.dtype,
            "kv_data_type": self.cache.stored,
        }

    def _wrapper(self, kind: Kind, paged: bool, v: AttentionOptions) -> tuple[Any, Fence]:
        key = (kind, paged, v)
        if key not in self._wrappers:
            if kind in ("decode", "filtered"):
                wrapper = self.library.BatchDecodeWithPagedKVCacheWrapper(
                    self.workspace, "NHD", use_tensor_cores=self.tensor_cores
                )
            else:
                # The kernels for Hopper know no masks, and 8-bit keys only of 8-bit queries.
                plain = kind == "prefill" and self.cache.stored == self.cache.dtype
                backend = self._config.prefill if plain else "fa2"
                wrapper = self.library.BatchPrefillWithPagedKVCacheWrapper(
                    self.workspace, "NHD", backend=backend
                )
            self._wrappers[key] = (wrapper, Fence(self.device))
        return self._wrappers[key]

    def store(self, layer: int, slots: Slots, keys_values: torch.Tensor) -> None:
        """Writes keys and values `[t, 2 * kv_heads * head_dim]` into slots."""
        packed = self.cache.pack(keys_values)
        if "append" in self._config.without:
            self.cache.rows[layer].index_copy_(0, slots.index, packed)
            return
        shape = (-1, 2, self.cache.kv_heads, self.cache.head_dim)
        keys, values = packed.view(self.cache.stored).view(shape).unbind(1)
        # Every token is the one key of a sequence with one page of one slot.
        self.library.append_paged_kv_cache(
            keys,
            values,
            slots.numbers,
            slots.zeros,
            self.by_slot[layer],
            slots.entries,
            slots.starts,
            slots.ones,
        )


class Slots:
    """Slots on the device, as the ways of writing into them want them."""

    def __init__(self, index: torch.Tensor) -> None:
        """Takes slots `[t]`, int64; they may change in place if `refresh` follows."""
        count, device = index.shape[0], index.device
        self.index = index
        self.entries = index.to(torch.int32)
        self.starts = torch.arange(count + 1, dtype=torch.int32, device=device)
        self.numbers = self.starts[:count]
        self.zeros = torch.zeros(count, dtype=torch.int32, device=device)
        self.ones = torch.ones(count, dtype=torch.int32, device=device)

    def refresh(self) -> None:
        """Brings what was made of the index up to date."""
        self.entries.copy_(self.index)


class _Prepared(PreparedAttention):
    def __init__(self, backend: FlashInferAttention, slots: Int64, groups: list[_Group]) -> None:
        self._backend = backend
        self._slots = Slots(upload_index(slots, backend.device))
        self._groups = groups

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        self._backend.store(layer, self._slots, keys_values)

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        backend = self._backend
        result = queries.new_empty(queries.shape)
        for group in self._groups:
            run = group.runs[backend.layers[layer]]
            pool = backend.by_page[layer] if group.paged else backend.by_slot[layer]
            if isinstance(group.rows, slice):
                out = result[group.rows]
                run.wrapper.run(queries[group.rows], pool, out=out)
            else:
                some = queries.index_select(0, group.rows)
                out = torch.empty_like(some)
                run.wrapper.run(some, pool, out=out)
            if run.blank is not None:
                out.index_fill_(0, run.blank, 0.0)
            if not isinstance(group.rows, slice):
                result.index_copy_(0, group.rows, out)
        return result.flatten(1)


def window_left(v: AttentionOptions) -> int:
    """Keys before an input that it sees, -1 for all; the input itself does not count."""
    return -1 if v.sliding is None else v.sliding - 1
