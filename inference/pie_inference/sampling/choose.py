"""Choosing a token for each row of logits, each row with parameters of its own.

The filters apply in this order: temperature, top-k, top-p (of what top-k has left), min-p. A token
is drawn by a race: each one gets an exponential variate that depends on seed, step and token only,
and the largest `logit - log(variate)` wins (the Gumbel-max trick). So what a filter drops, or a
last bit of rounding, does not move the others' draws, as it would in a cumulative sum over the
vocabulary.

Parameters lie on the host: which rows are handled together is decided there, without asking the
device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Bool, Int64, upload
from pie_inference.sampling.noise import exponentials, starts
from pie_py.wire.plan import Float32


def top_tokens(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids `[n, k]`, int64, of the largest of float32 logits `[n, vocabulary]`, ties by lower id.

    On a CPU NumPy selects: it has vector instructions for that, and takes a fraction of torch's
    time.
    """
    on_cpu = logits.device.type == "cpu"
    if k == 1:
        if on_cpu:
            return torch.from_numpy(logits.numpy().argmax(1, keepdims=True))
        return logits.argmax(1, keepdim=True)
    keys = sort_keys(logits)
    if on_cpu:
        array = keys.numpy()
        largest = np.partition(array, array.shape[1] - k, axis=1)[:, -k:]
        largest.sort(axis=1)
        best = torch.from_numpy(largest[:, ::-1].copy())
    else:
        best = keys.topk(k, dim=1).values
    return (best & 0xFFFFFFFF).neg_().add_(0xFFFFFFFF)


def sort_keys(logits: torch.Tensor) -> torch.Tensor:
    """Distinct int64 keys that sort by logit, and by descending id among equal logits."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0: equal numbers, equal bits
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # float order as integer order
    ids = torch.arange(logits.shape[1], device=logits.device)
    return (ordered.to(torch.int64) << 32) | (0xFFFFFFFF - ids)


NUCLEUS = 256  # tokens that are sorted for top-p on a CPU; where those are too few, all tokens race
NOTHING = -1  # chosen where every token is ruled out
NO_NUMBER = -2  # chosen by a program whose numbers are none
_FEW = 4  # times as many tokens as may win
_CACHED = 1 << 17  # random numbers made at once on a CPU
_AT_ONCE = 1 << 22  # logits of rows that a GPU draws together: they take some 50 bytes each
_NEVER = 1e-12  # the chance that no candidate of a race is in the nucleus


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to choose, one row per sample."""

    temperature: Float32  # [n] 0 takes the most likely token
    top_k: Int64  # [n] 0 is all
    top_p: Float32  # [n] 0 is the most likely token alone
    min_p: Float32  # [n]
    seeds: NDArray[np.uint64]  # [n]
    steps: NDArray[np.uint32]  # [n]

    @property
    def drawn(self) -> Bool:
        """Which rows are drawn by chance; the others take the most likely token."""
        found: Bool = (self.temperature > 0) & (self.top_p > 0) & (self.top_k != 1)
        return found

    def rows(self, index: NDArray[np.intp]) -> Parameters:
        """The parameters of some rows."""
        if len(index) == len(self.temperature):
            return self
        return Parameters(
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.min_p[index],
            self.seeds[index],
            self.steps[index],
        )


def choose(logits: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Tokens `[n]`, int64: one for each row of float32 logits `[n, vocabulary]`.

    A logit of minus infinity is never chosen; a row of nothing else gets `NOTHING`. Equal logits
    count by lower id.
    """
    chosen = top_tokens(logits, 1)
    best = logits.gather(1, chosen)
    drawn = parameters.drawn
    if drawn.any():
        limited = (parameters.top_k > 0) & (parameters.top_k < logits.shape[1])
        filtered = limited | (parameters.top_p < 1)
        on_cpu = logits.device.type == "cpu"
        # Whether what is sorted suffices, a GPU would have to be asked, and the host would wait for
        # it.
        wide = filtered & ~limited & (not on_cpu)
        at_once = len(drawn) if on_cpu else max(1, _AT_ONCE // logits.shape[1])
        for group, draw in (
            (drawn & ~filtered, _plain),
            (drawn & filtered & ~wide, _filtered),
            (drawn & wide, _nucleus),
        ):
            every = np.flatnonzero(group)
            for rows in (every[i : i + at_once] for i in range(0, every.size, at_once)):
                some = parameters.rows(rows)
                values = _rows(logits, rows) - _rows(best, rows)
                values /= _column(some.temperature, values)
                _put(chosen, rows, draw(values, some))
    return torch.where(best > -torch.inf, chosen, NOTHING).squeeze(1)  # nor is what is no number


def _plain(scaled: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Tokens `[n, 1]` by chance, of logits `[n, vocabulary]` whose best is 0."""
    return _scores(scaled, _every(scaled), parameters).argmax(1, keepdim=True)


def _nucleus(scaled: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """As `_plain`, with top-p alone, however wide the nucleus is."""
    mass = scaled.exp().sum(1, keepdim=True, dtype=torch.float64)
    return _race_in_nucleus(scaled, _column(parameters.top_p, mass) * mass, parameters)


def _filtered(scaled: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """As `_plain`, with top-k or top-p: only the tokens that they may keep are sorted."""
    vocabulary = scaled.shape[1]
    unlimited = (parameters.top_k == 0) | (parameters.top_k >= vocabulary)
    most = np.where(unlimited, NUCLEUS, parameters.top_k)
    width = min(int(most.max()), vocabulary)
    tokens = top_tokens(scaled, width)
    values = scaled.gather(1, tokens)
    ranks = torch.arange(width, device=scaled.device)
    # Beyond what top-k keeps there is nothing; without it, there is more than what was sorted.
    limits = _column(np.where(unlimited, width, parameters.top_k), scaled)
    weights = values.double().exp().masked_fill_(ranks >= limits, 0.0)
    sums = weights.cumsum(1)
    mass = sums[:, -1:]
    beyond = np.flatnonzero(unlimited & (parameters.top_p < 1) & (width < vocabulary))
    if beyond.size:
        mass = mass.clone()
        _put(mass, beyond, _rows(scaled, beyond).exp().sum(1, keepdim=True, dtype=torch.float64))
    wanted = _column(parameters.top_p, mass) * mass
    # The fewest most likely tokens that reach the mass wanted; with top-p 1 it is not left to
    # rounding.
    kept = (sums - weights < wanted) | _column(parameters.top_p >= 1, scaled)
    kept &= ranks < limits
    winners = _scores(values.masked_fill(~kept, -torch.inf), tokens, parameters).argmax(1, True)
    chosen = tokens.gather(1, winners)
    if beyond.size:
        short = _rows(sums[:, -1:] < wanted, beyond).squeeze(1).numpy()
        rows = beyond[short]
        if rows.size:
            some = _rows(scaled, rows)
            scores = _scores(some, _every(some), parameters.rows(rows))
            found = _first_inside(scores, some, _rows(wanted, rows))
            _put(chosen, rows, found)
    return chosen


def _first_inside(scores: torch.Tensor, scaled: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Tokens `[n, 1]` as of `_race_in_nucleus`, of all tokens' scores, on a CPU.

    One candidate after the other. Where one is outside, so is all that is no likelier: each time
    about half of what is left.
    """
    chosen = np.empty((scores.shape[0], 1), np.int64)
    limits = wanted.squeeze(1).tolist()
    for row, (arrivals, values) in enumerate(zip(scores.numpy(), scaled.numpy(), strict=True)):
        tokens, weights = np.arange(values.size), None
        while True:
            first = arrivals.argmax()
            likelier = values > values[first]
            likelier[:first] |= values[:first] == values[first]
            kept = np.flatnonzero(likelier)
            values = values[kept]
            weights = np.exp(values, dtype=np.float64) if weights is None else weights[kept]
            if not weights.sum() >= limits[row]:  # the likeliest has nothing before it
                break
            tokens, arrivals = tokens[kept], arrivals[kept]
        chosen[row] = tokens[first]
    return torch.from_numpy(chosen)


def _race_in_nucleus(
    scaled: torch.Tensor, wanted: torch.Tensor, parameters: Parameters
) -> torch.Tensor:
    """Tokens `[n, 1]` by chance, of the fewest most likely ones whose weights reach `wanted`, `[n,
    1]`.

    All tokens race. The first to arrive that is in the nucleus would win if that raced alone. The
    weight of all more likely ones decides whether one is in it; nothing has to be sorted or counted
    first, so shapes depend on the parameters only, as a GPU needs it.
    """
    keys = sort_keys(scaled)
    scores = _scores(scaled, _every(scaled), parameters)
    tokens = top_tokens(scores, _candidates(parameters.top_p, scaled.shape[1]))
    places, order = keys.gather(1, tokens).sort(1)  # the least likely candidate first
    # Of each token, how many candidates are less likely: its weight comes before theirs.
    below = torch.searchsorted(places, keys)
    weights = scaled.double().exp()
    parts = weights.new_zeros(scaled.shape[0], tokens.shape[1] + 1).scatter_add_(1, below, weights)
    before = parts.flip(1).cumsum(1).flip(1)[:, 1:]
    inside = torch.empty_like(order, dtype=torch.bool).scatter_(1, order, before < wanted)
    first = inside.to(torch.uint8).argmax(1, keepdim=True)
    likeliest = top_tokens(scaled, 1)  # these are in every nucleus
    return torch.where(inside.gather(1, first), tokens.gather(1, first), likeliest)


def _candidates(top_p: Float32, vocabulary: int) -> int:
    """How many of the first to arrive are looked at: each is in the nucleus with chance top-p."""
    least = float(top_p.min())
    return min(vocabulary, max(1, math.ceil(math.log(_NEVER) / math.log1p(-min(least, 1 - 1e-6)))))


def _every(scaled: torch.Tensor) -> torch.Tensor:
    return torch.arange(scaled.shape[1], device=scaled.device)


def _scores(values: torch.Tensor, tokens: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Of values `[n, m]`: the largest wins. `tokens` is `[n, m]`, or `[m]` for all rows."""
    start = _column(starts(parameters.seeds, parameters.steps).view(np.int64), values)
    scores = race(values, start, tokens)
    if parameters.min_p.any():
        with np.errstate(divide="ignore"):
            floor = np.log(parameters.min_p.clip(max=1.0))  # the likeliest token stays
        scores.masked_fill_(values < _column(floor, values), -torch.inf)
    return scores


def race(values: torch.Tensor, start: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Scores of float32 values `[n, m]`, of which the largest wins; `_scores` without a floor. A
    row's random numbers begin at its start, int64 `[n, 1]`; tokens are `[n, m]`, or `[m]` for all
    rows.
    """
    count, width = values.shape
    on_cpu = values.device.type == "cpu"
    if on_cpu and tokens.ndim == 1 and (kept := _running(values)) is not None:
        return _race_of_few(values, start, tokens, kept)
    scores = torch.empty_like(values)
    # A CPU is fastest with what its cache holds.
    at_once = max(1, _CACHED // width) if on_cpu else count
    for first in range(0, count, at_once):
        part = slice(first, first + at_once)
        some = tokens if tokens.ndim == 1 else tokens[part]
        torch.sub(values[part], exponentials(start[part], some).log_(), out=scores[part])
    return scores


def _running(values: torch.Tensor) -> NDArray[np.intp] | None:
    """On a CPU: the cells, one row after the other, that are not minus infinity; None if those are
    not few.
    """
    kept = values.numpy() != -np.inf
    if np.count_nonzero(kept) * _FEW > kept.size:
        return None
    return np.flatnonzero(kept)


def _race_of_few(
    values: torch.Tensor, start: torch.Tensor, tokens: torch.Tensor, kept: NDArray[np.intp]
) -> torch.Tensor:
    """As `race`, with random numbers for those cells alone; the others' score is as they are."""
    cells = torch.from_numpy(kept)
    rows, columns = cells // values.shape[1], cells % values.shape[1]
    variates = exponentials(start.expand(len(values), 1)[rows, 0], tokens[columns])
    scores = values.reshape(-1).clone()
    scores[cells] -= variates.log_()
    return scores.view(values.shape)


def _column(numbers: NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    """Numbers `[n]` as a column on a tensor's device."""
    return upload(np.ascontiguousarray(numbers), like.device)[:, None]


def _rows(values: torch.Tensor, rows: NDArray[np.intp]) -> torch.Tensor:
    """Some rows, in order; all of them as they are."""
    if len(rows) == values.shape[0]:
        return values
    return values[upload(rows, values.device)]


def _put(values: torch.Tensor, rows: NDArray[np.intp], new: torch.Tensor) -> None:
    """Sets some rows."""
    if len(rows) == values.shape[0]:
        values.copy_(new)
    else:
        values[upload(rows, values.device)] = new
