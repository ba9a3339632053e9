"""Shared prefixes: sequences whose page tables begin with the same pages attend to those together.

One call for all their queries reads the keys and values of the prefix once, where a call for each
sequence would read a copy of them from memory. What a query attends to is then in two parts, the
prefix and the rest. Each part's output is a mean weighted by softmax, and the two are joined by the
log-sum-exp of their scores, as blocks are in FlashAttention (Dao et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pie_inference.attention.sequences import Sequences
from pie_inference.device import Bool, Int64

# Keys that sharing must save to pay off, in all and for each query: joining takes time. Measured
# with 2 to 32 sequences that decode: with fewer it was sometimes slower, with more it never was.
FEWEST_SAVED = 1536
SAVED_PER_QUERY = 16
MAX_CELLS = 1 << 20  # entries of page tables that are compared; pages behind them are not shared


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The first entries of the page tables of some sequences, the same in all of them."""

    members: Int64  # sequences, ascending
    entries: int  # of each page table
    keys: int


def find_shared_prefixes(s: Sequences, able: Bool) -> list[SharedPrefix]:
    """The prefixes that it pays to attend to together; no sequence is in two of them.

    Only sequences that are `able` may share: all their inputs see their whole context, none of it
    masked. And only those whose first page is also the first one of another are looked at: a
    forward without shared prefixes takes almost no time here.
    """
    counts = np.diff(s.pages.starts)
    members = np.flatnonzero(able & (counts > 0))
    if members.size < 2:
        return []
    firsts = s.pages.pages[s.pages.starts[members]]
    _, group, sizes = np.unique(firsts, return_inverse=True, return_counts=True)
    members = members[sizes[group] > 1]
    if members.size < 2:
        return []
    members, entries, keys = _neighbours(s, members, counts[members])
    queries = np.diff(s.input_starts)[members]
    return [
        SharedPrefix(
            np.sort(members[a:b]), int(entries[a : b - 1].min()), int(keys[a : b - 1].min())
        )
        for a, b in _best_runs(keys, queries)
    ]


def _neighbours(s: Sequences, members: Int64, counts: Int64) -> tuple[Int64, Int64, Int64]:
    """Members in an order in which those that begin alike are neighbours, and what each has in
    common with the next one: entries and keys.
    """
    width = min(int(np.sort(counts)[-2]), max(1, MAX_CELLS // members.size))
    columns = np.arange(width)
    at = s.pages.starts[members][:, None] + np.minimum(columns, counts[:, None] - 1)
    used = s.pages.used[at]
    table = s.pages.pages[at] * (int(s.pages.used.max()) + 1) + used
    # A table that has ended equals no other: a negative number that only its sequence has.
    table = np.where(columns < counts[:, None], table, -1 - np.arange(members.size)[:, None])
    # As one string of bytes each, tables that begin alike are neighbours once they are sorted.
    # Which of them is first does not matter, so the order of the bytes does not, either.
    order = table.view(np.dtype((np.void, width * table.itemsize))).reshape(-1).argsort()
    alike = table[order[1:]] == table[order[:-1]]
    entries = np.where(alike.all(1), width, alike.argmin(1))
    ends = np.zeros((members.size, width + 1), np.int64)
    np.cumsum(used, axis=1, out=ends[:, 1:])
    return members[order], entries, ends[order[:-1], entries]


class _Run(NamedTuple):
    """Consecutive members, and the best way known to cut them into runs that share a prefix."""

    first: int
    end: int
    saved: int  # keys, by `runs`
    runs: list[tuple[int, int]]


def _best_runs(keys: Int64, queries: Int64) -> list[tuple[int, int]]:
    """Runs of members that share a prefix, so that many keys need not be read again; `keys` is what
    each member but the last has in common with the next one.

    It saves no fewer than the best single run would; what joining costs is taken off.
    """
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(queries)])

    def saved(first: int, end: int, common: int) -> int:
        joining = FEWEST_SAVED + SAVED_PER_QUERY * int(before[end] - before[first])
        return (end - first - 1) * common - joining

    total = queries.size
    if (keys == keys[0]).all():
        return [(0, total)] if saved(0, total, int(keys[0])) > 0 else []
    # Runs grow by joining neighbours, those with most in common first. So what two runs have in
    # common when they are joined is what all members of the new run have in common.
    starting = {i: _Run(i, i + 1, 0, []) for i in range(total)}
    ending = {i + 1: run for i, run in starting.items()}
    for i in (-keys).argsort(kind="stable").tolist():
        left, right = ending.pop(i + 1), starting.pop(i + 1)
        apart = left.saved + right.saved
        together = saved(left.first, right.end, int(keys[i]))
        run = _Run(left.first, right.end, apart, left.runs + right.runs)
        if together > apart:
            run = _Run(left.first, right.end, together, [(left.first, right.end)])
        starting[run.first] = ending[run.end] = run
    return starting[0].runs


class Parts(NamedTuple):
    """The values that queries found in some of their keys."""

    found: torch.Tensor  # [queries, heads * head_dim]
    sums: torch.Tensor  # [queries, heads] float32, log-sum-exp of the scores


def attend_to_prefix(
    queries: torch.Tensor, keys_values: torch.Tensor, scale: float | None
) -> Parts:
    """The values that queries `[n, heads, head_dim]` find in all of `[keys, 2, kv_heads,
    head_dim]`.
    """
    count, heads, dim = queries.shape
    key, value = keys_values.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)  # [1, kv_heads, keys, dim]
    kv_heads = key.shape[1]
    # Query heads that share a key head become queries of one head: each key is read once for all.
    query = queries.view(count, kv_heads, -1, dim).transpose(0, 1).reshape(1, kv_heads, -1, dim)
    found, sums = flash(query, key, value, scale=scale)
    found = found.view(kv_heads, count, -1, dim).transpose(0, 1)
    sums = sums.reshape(kv_heads, count, -1).transpose(0, 1)
    return Parts(found.reshape(count, -1), sums.reshape(count, heads))


def joined(one: Parts, other: Parts) -> torch.Tensor:
    """The values that queries found in two parts of their keys together, `[queries, heads *
    head_dim]`.
    """
    count, heads = one.sums.shape
    # exp(b) / (exp(a) + exp(b)), written so that it never overflows: the other part's share of
    # weight.
    share = torch.sigmoid(other.sums - one.sums).unsqueeze(-1)
    first, second = (part.found.view(count, heads, -1).float() for part in (one, other))
    return first.lerp(second, share).to(one.found.dtype).view(count, -1)


# PyTorch's attention on the CPU, in the form that returns the log-sum-exp of the scores, too.
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
