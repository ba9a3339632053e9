"""A step of decoding in one call of `step.c`: all layers of a decoder of Llama's kind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Bool, Int32, Int64
from pie_inference.layers.grouped import LANES, GroupedLinear
from pie_inference.layers.lora import Adapter
from pie_inference.layers.native import library, needed_library
from pie_inference.layers.norms import RmsNorm
from pie_inference.layers.rope import Angles

MOST_HEADS, MOST_DIM = 128, 256  # of queries, and numbers of one: what `step.c` has room for
PRODUCTS, GATE_UP = 4, 2  # of a layer; one's place among them
MOST_ROWS = 512  # of a prompt, at once: the memory that they take is the next ones'
KEPT_ROOM = 32 << 20  # bytes of memory that is kept between steps
AT_ONCE = 8  # layers between two looks of `between_layers`

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float


class _Products(ctypes.Structure):
    _fields_ = [("parts", _POINTER), ("count", _LONG)]


class _Layer(ctypes.Structure):
    _fields_ = [
        ("products", _Products * PRODUCTS),
        ("norms", _POINTER * 4),
        ("pool", _POINTER),
        ("window", _LONG),
        ("rope", _INT),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
        ("sinks", _POINTER),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("layers", "norm")),
        # `dim`: numbers of a head; `inner`: of the feed-forward blocks.
        *((name, _LONG) for name in ("count", "hidden", "heads", "kv_heads", "dim", "inner")),
        # `interleaved`: the planes that turn are neighbouring dimensions.
        *((name, _INT) for name in ("interleaved", "bfloat16")),
        ("epsilon", _FLOAT),  # of the norms
    ]


class _Angles(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("cosines", "sines")),
        *((name, _LONG) for name in ("turned", "stride")),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("x", "found", "angles", "slots", "starts", "keys")),
        *((name, _POINTER) for name in ("entries", "positions")),
        *((name, _LONG) for name in ("rows", "page_size", "most_alone")),
        *((name, _POINTER) for name in ("rules", "shared", "leaders")),
        *((name, _POINTER) for name in ("owners", "low_ranks", "wanted")),
        ("outputs", _LONG),
        ("room", _POINTER),
    ]


_ARRAYS = ("slots", "starts", "keys", "entries", "positions", "wanted", "owners")


class LayerWatch(Protocol):
    """Sees a layer's queries before these attend, after the keys and values were stored."""

    rows: Int64
    """Inputs that do not attend themselves: `see` writes what they find."""

    def see(self, layer: int, queries: torch.Tensor, found: torch.Tensor) -> None:
        """Takes queries `[n, heads, head_dim]`, whose memory is used again; `found` is
        `[n, heads * head_dim]`.
        """


class LayerChange(Protocol):
    """Changes what some layers are given."""

    at: frozenset[int]

    def before(self, layer: int, x: torch.Tensor) -> None:
        """Changes `[n, hidden]` in place."""


@dataclass(frozen=True, slots=True)
class StepLayer:
    """One layer."""

    products: Sequence[GroupedLinear]  # query, key and value; output; gate and up; down
    norms: Sequence[RmsNorm | None]  # of the attention, the feed-forward block, queries and keys
    pool: torch.Tensor  # [slots, 2 * kv_heads * dim]
    window: int | None  # in positions
    rope: int | None  # number
    scale: float  # of scores


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where each of `n` inputs is, and the keys it sees."""

    slots: Int64  # [n] of its own key and value
    starts: Int64  # [n] offsets into entries
    keys: Int64  # [n] how many, its own included
    entries: Int32  # pages of `page_size` slots
    page_size: int
    positions: Int32  # of all slots of the pool
    most_alone: int  # rows of a sequence that attend one by one
    # Of a sequence that does not see all: its first row, and which of its keys each sees [m, keys]
    rules: Mapping[int, Bool]
    may_share: bool  # rows that begin with the same keys may attend to these in tiles
    wanted: Int64  # [outputs] inputs whose result is wanted, in their order
    owners: Int64 | None = None  # [n] the adapter of each, or -1
    adapters: Sequence[Adapter] = ()

    def part(self, first: int, end: int) -> StepRows:
        """Some of the inputs; those before have run. There are no rules."""
        some = slice(first, end)
        return replace(
            self,
            slots=self.slots[some],
            starts=self.starts[some],
            keys=self.keys[some],
            wanted=self.wanted[(first <= self.wanted) & (self.wanted < end)] - first,
            owners=None if self.owners is None else self.owners[some],
        )


class DecodeStep:
    """Runs the layers with PyTorch's threads, and the last norm."""

    def __init__(self, layers: Sequence[StepLayer], norm: RmsNorm, **sizes: float) -> None:
        """Takes the layers, the last norm, and sizes of all layers, as `_Model` names them. Inputs
        of products are in the dtype of the pools.
        """
        self._library = needed_library()
        self._dtype = layers[0].pool.dtype
        self._kept: list[object] = []  # what is pointed at
        self._norms: list[tuple[RmsNorm, torch.Tensor]] = []  # and their weights, as these are read
        self._layers = (_Layer * len(layers))(*map(self._layer, layers))
        self._model = _Model(
            layers=ctypes.addressof(self._layers),
            norm=self._weight(norm),
            count=len(layers),
            bfloat16=self._dtype == torch.bfloat16,
            **sizes,
        )
        self._room = torch.empty(0, dtype=torch.uint8)
        self._products_of = [layer.products for layer in layers]
        self._low_ranks: WeakKeyDictionary[Adapter, Int64] = WeakKeyDictionary()

    def _low_ranks_of(self, adapter: Adapter) -> Int64:
        """An adapter's addition to each product: addresses and rank, `[layers, PRODUCTS, 3]`."""
        made = self._low_ranks.get(adapter)
        if made is None:
            added = [adapter.layers.get(of) for products in self._products_of for of in products]
            facts = [
                (each.down.data_ptr(), each.up.data_ptr(), len(each.up)) if each else (0, 0, 0)
                for each in added
            ]
            made = np.array(facts, np.int64).reshape(-1, PRODUCTS, 3)
            self._low_ranks[adapter] = made
        return made

    def _layer(self, layer: StepLayer) -> _Layer:
        self._kept.append(layer)
        return _Layer(
            # What gate and up give is rounded: prompts take longer with twice as much of it.
            products=tuple(
                self._products(product, self._dtype if i == GATE_UP else torch.float32)
                for i, product in enumerate(layer.products)
            ),
            norms=tuple(map(self._weight, layer.norms)),
            pool=layer.pool.data_ptr(),
            window=layer.window or 0,
            rope=-1 if layer.rope is None else layer.rope,
            scale=layer.scale,
        )

    def _products(self, linear: GroupedLinear, given: torch.dtype) -> _Products:
        parts = linear.parts(self._dtype, given)
        self._kept.append(parts)
        return _Products(ctypes.addressof(parts), len(parts))

    def _weight(self, norm: RmsNorm | None) -> int | None:
        if norm is None:
            return None
        self._norms.append((norm, weight := norm.weight))
        return weight.data_ptr()

    def renew(self) -> None:
        """The weights of norms have changed; those of products are read where they are."""
        for norm, weight in self._norms:
            weight.copy_(norm.weight)

    def run(
        self,
        x: torch.Tensor,
        angles: Sequence[Angles],
        rows: StepRows,
        between_layers: Callable[[], None],
        watches: Sequence[LayerWatch] = (),
        changes: LayerChange | None = None,
    ) -> torch.Tensor:
        """Runs over inputs, and stores their keys and values: many after each other.

        Args:
            x: the inputs `[n, hidden]`, float32, which are overwritten.
            angles: of each rope, cosines and sines.
            rows: where the inputs are.
            between_layers: called now and then.
            watches: see the queries of each layer before it attends.
            changes: are made of what some layers are given.

        Returns:
            `[outputs, hidden]`, behind the last norm, in the dtype of the pools.
        """
        count = -(-x.shape[0] // MOST_ROWS)
        if count == 1 or rows.rules or watches or changes is not None:
            return self._run(x, angles, rows, between_layers, watches, changes)
        ends = [len(x) * i // count for i in range(count + 1)]
        return torch.cat(
            [
                self._run(
                    x[first:end],
                    [tuple(each[first:end] for each in of) for of in angles],
                    rows.part(first, end),
                    between_layers,
                    (),
                )
                for first, end in pairwise(ends)
            ]
        )

    def _run(
        self,
        x: torch.Tensor,
        angles: Sequence[Angles],
        rows: StepRows,
        between_layers: Callable[[], None],
        watches: Sequence[LayerWatch],
        changes: LayerChange | None = None,
    ) -> torch.Tensor:
        """The same, at once."""
        turning = (_Angles * max(1, len(angles)))()
        for i, (cos, sin) in enumerate(angles):
            each = cos.data_ptr(), sin.data_ptr(), cos.shape[-1], cos.stride(0)
            turning[i] = _Angles(*each)
        found = torch.empty(rows.wanted.size, x.shape[1], dtype=self._dtype)
        ranks = [self._low_ranks_of(adapter) for adapter in rows.adapters]
        low_ranks = np.stack(ranks) if ranks else None
        step, needed, places, held = _laid_out(
            self._model,
            rows,
            x=x.data_ptr(),
            found=found.data_ptr(),
            angles=ctypes.addressof(turning),
            low_ranks=_address(low_ranks),
        )
        if self._room.shape[0] < needed:
            self._room = torch.empty(needed + needed // 4, dtype=torch.uint8)
        step.room, count = self._room.data_ptr(), self._model.count
        for first in range(0, count, AT_ONCE):
            end = min(first + AT_ONCE, count)
            done = first
            if changes is not None:
                for layer in sorted(each for each in changes.at if first <= each < end):
                    self._through(step, done, layer, places, watches)
                    changes.before(layer, x)
                    done = layer
            self._through(step, done, end, places, watches)
            between_layers()
        del held  # until here
        if needed > KEPT_ROOM:
            self._room = torch.empty(0, dtype=torch.uint8)
        return found

    def _through(
        self,
        step: _Step,
        first: int,
        end: int,
        places: Sequence[int],
        watches: Sequence[LayerWatch],
    ) -> None:
        if first == end:
            return
        if watches:
            self._watched(step, first, end, places, watches)
        else:
            self._library.step(ctypes.byref(self._model), ctypes.byref(step), 2 * first, 2 * end)

    def _watched(
        self,
        step: _Step,
        first: int,
        end: int,
        places: Sequence[int],
        watches: Sequence[LayerWatch],
    ) -> None:
        """Runs layers of a step whose watches see the queries, and may write what these find."""
        model, own, of = ctypes.byref(self._model), ctypes.byref(step), self._model
        # What queries, keys and values were computed in lies behind them, in float32.
        each = ((of.heads + 2 * of.kv_heads) * 4 // self._dtype.itemsize, of.heads)
        rows, mixed = (
            self._room[place : place + step.rows * heads * of.dim * self._dtype.itemsize]
            .view(self._dtype)
            .view(step.rows, heads, of.dim)
            for place, heads in zip(places, each, strict=True)
        )
        queries, found = rows[:, : of.heads], mixed.flatten(1)
        done = 2 * first  # halves of layers
        for layer in range(first, end):
            self._library.step(model, own, done, done := 2 * layer + 1)
            for watch in watches:
                watch.see(layer, queries, found)
        self._library.step(model, own, done, 2 * end)


class OpenedRows(NamedTuple):
    """Rows as the kernels read them."""

    step: _Step
    room: int  # bytes that are needed
    places: list[int]  # in it: of queries, keys and values, and of what queries find
    held: list[object]  # what is pointed at


def _laid_out(model: _Model, rows: StepRows, **more: int | None) -> OpenedRows:
    library = needed_library()
    rules, held = _rules(rows) if rows.rules else (None, [])
    step = _Step(
        rows=rows.slots.size,
        page_size=rows.page_size,
        most_alone=rows.most_alone,
        outputs=rows.wanted.size,
        rules=_address(rules),
        **{name: _address(getattr(rows, name)) for name in _ARRAYS},
        **more,
    )
    shared = np.empty((2, rows.slots.size), np.int64)  # and leaders
    both = ctypes.byref(model), ctypes.byref(step)
    of_rows = [_address(shared[0]), _address(shared[1])]
    if rows.may_share and library.find_shared(*both, *of_rows):
        step.shared, step.leaders = of_rows
    places = [ctypes.c_long(), ctypes.c_long()]
    needed = library.step_room(*both, *map(ctypes.byref, places))
    return OpenedRows(step, needed, [p.value for p in places], [rows, rules, shared, *held])


class RowsAttention:
    """Attention of all rows of a layer alone, for networks whose layers are others."""

    def __init__(self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        """Takes the sizes of a pool's keys, which `can_attend` allows."""
        self._library, self._layer = needed_library(), _Layer()
        self._model = _Model(
            heads=heads, kv_heads=kv_heads, dim=dim, bfloat16=dtype == torch.bfloat16
        )

    def open(self, rows: StepRows) -> OpenedRows:
        """Makes rows ready, for all layers."""
        opened = _laid_out(self._model, rows)
        room = torch.empty(opened.room, dtype=torch.uint8)
        opened.step.room = room.data_ptr()
        opened.held.append(room)
        return opened

    def run(
        self,
        opened: OpenedRows,
        queries: torch.Tensor,
        pool: torch.Tensor,
        scale: float,
        window: int | None,
        cap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """The attention of queries `[n, heads, dim]` to a layer's pool, in which their own keys
        are, `[slots, 2 * kv_heads * dim]`: `[n, heads * dim]`. The window is in positions; sinks,
        float32 `[heads]`, take their part of each sum.
        """
        layer = self._layer
        layer.pool, layer.window, layer.scale = pool.data_ptr(), window or 0, scale
        layer.cap, layer.sinks = cap or 0.0, None if sinks is None else sinks.data_ptr()
        if queries.stride()[1:] != (queries.shape[2], 1):
            queries = queries.contiguous()
        found = queries.new_empty(len(queries), queries[0].numel())
        stride = queries.stride(0) * queries.itemsize
        pointers = [ctypes.byref(each) for each in (self._model, layer, opened.step)]
        self._library.attend_rows(*pointers, queries.data_ptr(), stride, found.data_ptr())
        return found


def _rules(rows: StepRows) -> tuple[Int64, list[Bool]]:
    """The address of each input's rule, 0 if it has none, and what holds the rules."""
    addresses = np.zeros(rows.slots.size, np.int64)
    held = []
    for first, rule in rows.rules.items():
        bytes_of = np.zeros((len(rule), rule.shape[1] + LANES), np.bool_)
        bytes_of[:, : rule.shape[1]] = rule
        addresses[first : first + len(rule)] = (
            bytes_of.ctypes.data + np.arange(len(rule)) * bytes_of.shape[1]
        )
        held.append(bytes_of)
    return addresses, held


def _address(array: NDArray[np.integer[Any]] | None) -> int | None:
    """PyTorch says it in half the time that NumPy's `ctypes.data` takes."""
    return None if array is None else torch.from_numpy(array).data_ptr()


class _Chosen(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("entries", "positions")),
        *((name, _LONG) for name in ("count", "page_size", "last", "slot")),
        *((name, _POINTER) for name in ("queries", "kept")),
        ("kept_heads", _LONG),
        *((name, _POINTER) for name in ("found", "weights", "room")),
    ]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The context of one row, of which layers read parts."""

    entries: Int32  # pages of `page_size` slots, all full but for the last
    page_size: int
    last: int  # filled slots of the last entry, where the row's own is
    slot: int  # its own
    positions: Int32  # of all slots of the pool


class RowAttention:
    """Attention of one query over the keys that are chosen, read where they are."""

    def __init__(self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        """Takes the sizes of a pool's keys, which `can_attend` allows."""
        self._library, self._heads = needed_library(), heads
        self._layer, self._chosen = _Layer(), _Chosen()
        self._model = _Model(
            heads=heads, kv_heads=kv_heads, dim=dim, bfloat16=dtype == torch.bfloat16
        )
        self._pointers = [ctypes.byref(s) for s in (self._model, self._layer, self._chosen)]
        self._room = torch.empty(2 * heads * dim * dtype.itemsize, dtype=torch.uint8)
        self._keys: RowKeys | None = None  # of the newest call

    def run(
        self,
        keys: RowKeys,
        query: torch.Tensor,
        pool: torch.Tensor,
        kept: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        found: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Writes what a query finds.

        Args:
            keys: of the row.
            query: `[heads, dim]`, side by side.
            pool: keys and values of slots, `[slots, 2 * kv_heads * dim]`.
            kept: which entries are read, bool `[entries]`, or `[heads, entries]` of key heads or
                query heads, of which those that share keys read what one of them keeps. The last
                one is read in any case.
            scale: of scores.
            window: in positions, looking back from the query's; None: all.
            found: `[heads * dim]`, to be written.
            weights: float32 `[heads, entries]`, of entries of one slot: what each was given, to be
                written; 0 if it was not read.
        """
        layer, chosen = self._layer, self._chosen
        if keys is not self._keys or weights is not None:
            self._open(keys, weights)
        kept = kept.contiguous()
        layer.pool, layer.window, layer.scale = pool.data_ptr(), window or 0, scale
        chosen.queries, chosen.found = query.data_ptr(), found.data_ptr()
        chosen.kept, chosen.kept_heads = kept.data_ptr(), len(kept) if kept.ndim == 2 else 1
        self._library.attend_row(*self._pointers)

    def _open(self, keys: RowKeys, weights: torch.Tensor | None) -> None:
        chosen, self._keys = self._chosen, keys if weights is None else None
        chosen.entries, chosen.count = keys.entries.ctypes.data, keys.entries.size
        chosen.page_size, chosen.last, chosen.slot = keys.page_size, keys.last, keys.slot
        chosen.positions = keys.positions.ctypes.data
        chosen.weights = None if weights is None else weights.data_ptr()
        needed = self._library.attend_room(self._pointers[0], self._pointers[2])
        if len(self._room) < needed:
            self._room = torch.empty(needed + needed // 4, dtype=torch.uint8)
        chosen.room = self._room.data_ptr()

    def scores(
        self, bounds: torch.Tensor, pages: Int32, query: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """The largest that `scale * q·k` can be in each page, float32 `[heads, pages + 1]`; of one
        more, behind them, minus infinity.

        Args:
            bounds: least and largest numbers of keys, `[pages of the pool, kv_heads, 2, dim]`.
            pages: whose bounds are meant.
            query: `[heads, dim]`, side by side.
            scale: of scores.
        """
        found = torch.empty(self._heads, pages.size + 1)
        self._library.score_pages(
            self._pointers[0],
            bounds.data_ptr(),
            pages.ctypes.data,
            pages.size,
            query.data_ptr(),
            scale,
            found.data_ptr(),
            self._room.data_ptr(),
        )
        return found


def can_attend(heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """True if `RowAttention` knows keys of these sizes, and there is a library."""
    known = dtype in (torch.float32, torch.bfloat16) and device.type == "cpu"
    fits = heads <= MOST_HEADS and dim <= MOST_DIM and dim % LANES == 0
    return known and fits and library() is not None
