"""Attention by PyTorch and by our kernels finds what brute force does, as sequences come and go."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.model_rig import forward_of, ints, offsets, runs_of

from pie_inference.attention import AttentionBackend, AttentionOptions
from pie_inference.attention.kernel import KernelAttention
from pie_inference.attention.sequences import Sequences, describe
from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.memory.kv_cache import KvCache

PAGE, PAGES, HEADS, KV_HEADS, DIM = 4, 128, 4, 2, 16
BACKENDS: dict[str, Callable[..., AttentionBackend]] = {
    "torch": TorchAttention,
    "fixed": partial(TorchAttention, fixed=True),
    "kernel": KernelAttention,
}


class World:
    """A pool, page tables that grow, part and go, and attention over them, once more by brute
    force.
    """

    def __init__(
        self,
        backend: str,
        numbers: random.Random,
        window: int | None,
        cap: float | None,
        sunk: bool,
    ) -> None:
        self.numbers = numbers
        self.torch = torch.Generator().manual_seed(numbers.randrange(1 << 30))
        odd = AttentionOptions(scale=0.7, softcap=cap, window=window, sinks=sunk)
        self.options = [AttentionOptions(), odd]
        self.cache = KvCache(
            layers=2,
            pages=PAGES,
            page_size=PAGE,
            kv_heads=KV_HEADS,
            head_dim=DIM,
            scratch=16,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.attention = BACKENDS[backend](self.cache, HEADS, self.options)
        # A table of pages and filled slots each.
        self.streams: list[list[list[int]]] = [[], []]

    def free_pages(self) -> list[int]:
        held = {page for own in self.streams for page, _ in own}
        free = [page for page in range(PAGES) if page not in held]
        self.numbers.shuffle(free)
        return free

    def act(self) -> None:
        numbers = self.numbers
        match numbers.choice(
            ["forward"] * 12 + ["fork"] * 4 + ["join", "leave", "leave", "leave", "mask", "copy"]
        ):
            case "join" if len(self.streams) < 9:
                self.streams.append([])
            case "fork" if self.streams and len(self.streams) < 9:
                own = numbers.choice(self.streams)
                kept = numbers.randint(len(own) // 2, len(own))
                self.streams.append([list(entry) for entry in own[:kept]])
            case "leave" if self.streams:
                self.streams.pop(numbers.randrange(len(self.streams)))
            case "mask" if self.streams:
                slots = [self._slot(*entry) for own in self.streams for entry in own]
                if slots:
                    self.cache.masked[:] = False
                    self.cache.masked[numbers.sample(slots, numbers.randrange(2))] = True
            case "copy" if self.streams:
                slots = [self._slot(*entry) for own in self.streams for entry in own]
                if slots and (free := self.free_pages()):
                    source, target = free[0] * PAGE, numbers.choice(slots)
                    self.cache.copy(ints([source]), ints([target]))
            case "forward" if self.streams:
                self.forward(numbers.sample(self.streams, numbers.randint(1, len(self.streams))))

    def _slot(self, page: int, used: int) -> int:
        return page * PAGE + self.numbers.randrange(used)

    def _grow(self, own: list[list[int]], count: int, free: list[int]) -> list[int]:
        """Slots for inputs. A page that is part full and another's, too, is left as it is: a
        gap.
        """
        slots = []
        for _ in range(count):
            others = (
                sum(page == own[-1][0] for table in self.streams for page, _ in table) if own else 2
            )
            if not own or own[-1][1] == PAGE or others > 1:
                own.append([free.pop(), 0])
            page, used = own[-1]
            slots.append(page * PAGE + used)
            own[-1][1] += 1
        return slots

    @torch.inference_mode()
    def forward(self, some: list[list[list[int]]]) -> None:
        numbers, free, cache = self.numbers, self.free_pages(), self.cache
        chosen, counts, slots, tables, positions, masks, masked = [], [], [], [], [], [], []
        for own in some:
            count = numbers.choice([1, 1, 1, 2, 5, 30])
            if len(free) < count + 1:
                break
            before = [tuple(entry) for entry in own]
            context = sum(used for _, used in before)
            keep = count > 5 or numbers.random() < 0.9
            slots.append(self._grow(own, count, free) if keep else [-1] * count)
            chosen.append(own)
            counts.append(count)
            tables.append(before)
            at = list(range(context, context + count))
            positions.append(at if numbers.random() < 0.9 else numbers.sample(at, count))
            rule: list[int] = []
            if numbers.random() < 0.1:
                drawn = np.array(
                    [[numbers.random() < 0.6 for _ in range(context + count)] for _ in at]
                )
                rule = runs_of(drawn)
            masks.append(rule)
            live = [cache.masked[p * PAGE : p * PAGE + u].any() for p, u in before]
            masked.append(any(live) or numbers.random() < 0.05)
        if not counts:
            return
        batch = forward_of(
            counts,
            [slot for own in slots for slot in own],
            [[]] * len(counts),
            page_starts=offsets([len(table) for table in tables]),
            pages=[page for table in tables for page, _ in table],
            page_used=[used for table in tables for _, used in table],
            has_masked=masked,
            mask_starts=offsets([len(rule) for rule in masks]),
            mask=[m for rule in masks for m in rule],
        )
        places = ints([p for own in positions for p in own])
        s = describe(batch, places, cache)
        cache.positions[s.input_slots] = places
        seen = [self._seen(s, i) for i in range(len(counts))]
        prepared = self.attention.prepare(s)
        for layer, options in enumerate(self.options):
            stored = torch.randn((places.size, 2 * KV_HEADS * DIM), generator=self.torch)
            queries = torch.randn((places.size, HEADS, DIM), generator=self.torch)
            prepared.store(layer, stored)
            sinks = torch.randn(HEADS, generator=self.torch) if options.sinks else None
            found = prepared.attend(layer, queries, sinks)
            for i, (keys, shown) in enumerate(seen):
                own_rows = slice(*s.input_starts[i : i + 2].tolist())
                wanted = self._brute(
                    layer, options, queries[own_rows], places[own_rows], keys, shown, sinks
                )
                torch.testing.assert_close(found[own_rows], wanted, atol=1e-4, rtol=1e-4)
        cache.masked[s.input_slots] = False

    def _seen(self, s: Sequences, i: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Slots of a sequence's keys, and which of them its inputs see by the rules."""
        context = s.context_slots[slice(*s.context_starts[i : i + 2].tolist())]
        inputs = s.input_slots[slice(*s.input_starts[i : i + 2].tolist())]
        shown = np.ones((inputs.size, context.size + inputs.size), np.bool_)
        shown[:, context.size :] = np.tril(np.ones((inputs.size, inputs.size), np.bool_))
        if i in s.visible:
            rule = s.visible[i]
            shown[:, shown.shape[1] - rule.shape[1] :] = rule
        return np.concatenate([context, inputs]), shown

    def _brute(
        self,
        layer: int,
        options: AttentionOptions,
        queries: torch.Tensor,
        positions: NDArray[np.int32],
        keys: NDArray[np.int64],
        shown: NDArray[np.bool_],
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        held = self.cache.data[layer, keys].repeat_interleave(HEADS // KV_HEADS, 2)
        scores = torch.einsum("qhd,khd->hqk", queries, held[:, 0]) * (options.scale or DIM**-0.5)
        if (window := options.sliding) is not None:
            near = self.cache.positions[keys][None] > positions[:, None] - window
            shown = shown & near
        if options.softcap is not None:
            scores = options.softcap * (scores / options.softcap).tanh()
        scores = scores.masked_fill(~torch.from_numpy(shown), float("-inf"))
        if sinks is not None:
            beside = sinks[:, None, None].expand(-1, len(queries), 1)
            scores = torch.cat([scores, beside], -1)
        weights = scores.softmax(-1)[..., : len(keys)]
        found = torch.einsum("hqk,khd->qhd", weights.nan_to_num(), held[:, 1])
        return found.reshape(queries.shape[0], -1)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 30),
    window=st.sampled_from([None, 16, 100]),
    cap=st.sampled_from([None, 1.5]),
    sunk=st.booleans(),
)
def test_it_agrees_with_brute_force(
    backend: str, seed: int, window: int | None, cap: float | None, sunk: bool
) -> None:
    """While sequences grow, fork, leave, and pages are used again; masks, rules, windows, caps and
    sinks among them.
    """
    world = World(backend, random.Random(seed), window, cap, sunk)
    for _ in range(60):
        world.act()
