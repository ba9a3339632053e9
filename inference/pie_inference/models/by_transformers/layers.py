"""The attention that the layers of a module ask for, and its rows in the widths of one pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention import AttentionOptions, Chunk, PreparedAttention, Window, outside
from pie_inference.errors import LoadError
from pie_inference.models.by_transformers.interface import Asked, Attend, MaskFunction, Mixer
from pie_inference.models.by_transformers.states import StateSizes, over_states

BLOCK = 256  # positions are counted in blocks and within them, both exact in bfloat16


class Call(NamedTuple):
    """The options that a layer gives each time."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    sinks: bool
    slopes: bool

    @staticmethod
    def of(asked: Asked) -> Call:
        """Raises `LoadError` if queries, keys and values are not those of the same rows."""
        query, key, value = asked.query, asked.key, asked.value
        rows = query.shape[0], query.shape[2]
        if any((x.shape[0], x.shape[2]) != rows for x in (key, value)) or rows[0] != 1:
            raise LoadError(f"{type(asked.module).__name__} attends to more than its own inputs")
        widths = query.shape[1], key.shape[1], key.shape[3], value.shape[3]
        if query.shape[1] % key.shape[1] or value.shape[1] != key.shape[1]:
            raise LoadError(f"{type(asked.module).__name__}: heads that do not divide")
        sinks, slopes = asked.sinks is not None, asked.slopes is not None
        return Call(*widths, asked.scale, asked.softcap or None, sinks, slopes)


def window_of(seen: MaskFunction, positions: int) -> Window | None:
    """The window of a mask, found by asking it about that many positions; None if it is causal and
    nothing else. Raises `LoadError` if it is another one.
    """
    every, none = torch.arange(positions), torch.zeros(1, 1, 1, 1, dtype=torch.int64)

    def asked(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        found = seen(none, none, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
        return found.expand(1, 1, queries.numel(), keys.numel())[0, 0]

    lost = (~asked(every, every[:1])[:, 0]).nonzero().flatten()  # they do not see the first key
    size = int(lost[0]) if lost.numel() else 0
    near = [i * size + d for i in (1, 2, 3) for d in (-1, 0, 1)]
    some = {0, 1, 2, 5, positions // 3, positions // 2, positions - 1, *near}
    queries = torch.tensor(sorted(q for q in some if 0 <= q < positions))
    found, own = asked(queries, every), queries[:, None]
    candidates: Sequence[Window | None] = (size, Chunk(size)) if size else (None,)
    for window in candidates:
        wanted = every <= own
        if window is not None:
            wanted = wanted & ~outside(window, own, every)
        if torch.equal(found, wanted):
            return window
    raise LoadError("its mask is neither causal nor a window of that")


class Widths:
    """One width of heads for all layers: what a layer has less is filled with zeros."""

    def __init__(self, calls: Sequence[Call]) -> None:
        """Raises `LoadError` if layers share keys among heads in ways that do not fit together."""
        self.kv_heads = max(call.kv_heads for call in calls)
        if any(self.kv_heads % c.kv_heads or c.heads % self.kv_heads for c in calls):
            raise LoadError("its layers have numbers of key heads that do not divide each other")
        self.group = max(call.heads for call in calls) // self.kv_heads
        self.dim = max(max(c.key_dim + 2 * c.slopes, c.value_dim) for c in calls)
        self.dim += self.dim % 2

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values `[1, kv_heads, rows, dim]` as `[rows, kv_heads, dim]` of the pool."""
        x = x[0].transpose(0, 1)
        if (times := self.kv_heads // x.shape[1]) > 1:
            x = x.repeat_interleave(times, 1)
        return F.pad(x, (0, self.dim - x.shape[2]))

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """Queries `[1, heads, rows, dim]` as `[rows, heads, dim]` of the pool."""
        x = x[0].transpose(0, 1)
        rows, heads, dim = x.shape
        group = heads // self.kv_heads
        x = x.reshape(rows, -1, group, dim)
        x = F.pad(x, (0, self.dim - dim, 0, self.group - group))
        return x.reshape(rows, self.heads, self.dim)

    def sinks(self, x: torch.Tensor | None) -> torch.Tensor | None:
        """Sinks `[heads]`, likewise."""
        if x is None:
            return None
        group = x.numel() // self.kv_heads
        return F.pad(x.reshape(self.kv_heads, group), (0, self.group - group)).flatten()

    def found(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        """The own heads of a layer, `[1, rows, heads, value_dim]`, in `[rows, heads * dim]`."""
        whole = x.view(-1, self.kv_heads, self.group, self.dim)
        own = whole[:, :, : call.heads // self.kv_heads, : call.value_dim]
        return own.reshape(1, -1, call.heads, call.value_dim).contiguous()


class Layers:
    """The layers of a module, in the order in which they attend, and those with a state."""

    def __init__(
        self,
        calls: Sequence[Call],
        windows: Sequence[Window | None],
        states: Sequence[StateSizes] = (),
    ) -> None:
        """Raises `LoadError` if they do not fit into one pool."""
        if len(set(states)) > 1:
            raise LoadError("its layers have states of different sizes")
        self.states = states[0] if states else None
        self.recurrent = states[0].shape(len(states)) if states else None
        self.calls = calls
        self.widths = Widths(calls)
        self.options = tuple(
            AttentionOptions(call.scale, call.softcap, window, call.sinks)
            for call, window in zip(calls, windows, strict=True)
        )


class Paged(Attend):
    """Attention of a forward over the pool."""

    def __init__(
        self,
        layers: Layers,
        prepared: PreparedAttention,
        dtype: torch.dtype,
        between: object,
    ) -> None:
        """Takes the attention that is prepared, the dtype of the pool, and what is called after
        each layer.
        """
        self._layers, self._prepared, self._dtype = layers, prepared, dtype
        self._between = between
        self._next = self._next_state = 0

    def attend(self, asked: Asked) -> torch.Tensor:
        """See `Attend.attend`."""
        number, widths = self._next, self._layers.widths
        self._next += 1
        call = self._layers.calls[number]
        if Call.of(asked) != call:
            raise RuntimeError(f"{type(asked.module).__name__} asks for {Call.of(asked)}: {call}")
        query, key = asked.query, asked.key
        if asked.slopes is not None:
            query, key = sloped(query, key, asked.slopes / asked.scale, self.positions)
        both = torch.cat([widths.rows(key), widths.rows(asked.value)], 1)
        self._prepared.store(number, both.flatten(1).to(self._dtype))
        queries = widths.queries(query).to(self._dtype)
        found = self._prepared.attend(number, queries, widths.sinks(asked.sinks))
        if callable(self._between):
            self._between()
        return widths.found(found, call).to(asked.value.dtype)

    def mix(self, hidden: torch.Tensor, mixer: Mixer) -> torch.Tensor:
        """See `Attend.mix`."""
        states, layers = self._prepared.states, self._layers
        assert states is not None
        assert layers.states is not None
        assert layers.recurrent is not None
        made = over_states(states, self._next_state, layers.states, hidden, mixer)
        self._next_state += 1
        if self._next_state == layers.recurrent.layers:
            states.done()
        return made


def sloped(
    query: torch.Tensor, key: torch.Tensor, slopes: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys `[1, heads, rows, dim + 2]` whose products have `slopes` `[heads]` times a
    key's position in them (ALiBi, Press et al. 2022).
    """
    shape = (*query.shape[1:3], 1)
    steep = slopes.view(-1, 1, 1).expand(shape).to(query.dtype)
    blocks = torch.stack([positions // BLOCK, positions % BLOCK], -1).to(key.dtype)
    by_key = blocks.expand(key.shape[1], -1, -1)
    query = torch.cat([query, torch.cat([steep * BLOCK, steep], -1)[None]], -1)
    return query, torch.cat([key, by_key[None]], -1)
