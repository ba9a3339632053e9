"""Choosing a token for each row of logits, each row with parameters of its own.

The filters apply in this order: temperature, top-k, top-p (of what top-k has left), min-p. A token is
drawn by a race: each one gets an exponential variate that depends on seed, step and token only, and the
largest `logit - log(variate)` wins (the Gumbel-max trick). So what a filter drops, or a last bit of
rounding, does not move the others' draws, as it would in a cumulative sum over the vocabulary.

Parameters lie on the host: which rows are handled together is decided there, without asking the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.sampling.noise import exponentials, starts
from pie_inference.sampling.order import top_tokens
from pie_inference.upload import upload
from pie_py.wire.plan import Float32

NUCLEUS = 256  # tokens that are sorted for top-p; where those are too few, a histogram is made
NOTHING = -1  # chosen where every token is ruled out
_CACHED = 1 << 16  # random numbers made at once on a CPU
_BINS = 2048  # of the histogram
_BINS_PER_NAT = 64.0  # the last one holds all that is 32 nats, and more, below the best


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to choose, a row each."""

    temperature: Float32  # [n] 0 takes the most likely token
    top_k: NDArray[np.int64]  # [n] 0 is all
    top_p: Float32  # [n] 0 is the most likely token alone
    min_p: Float32  # [n]
    seeds: NDArray[np.uint64]  # [n]
    steps: NDArray[np.uint32]  # [n]

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """Which rows are drawn by chance; the others take the most likely token."""
        found: NDArray[np.bool_] = (self.temperature > 0) & (self.top_p > 0) & (self.top_k != 1)
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

    A logit of minus infinity is never chosen; a row of nothing else gets `NOTHING`. Equal logits count
    by lower id.
    """
    chosen = top_tokens(logits, 1)
    best = logits.gather(1, chosen)
    drawn = parameters.drawn
    if drawn.any():
        limited = (parameters.top_k > 0) & (parameters.top_k < logits.shape[1])
        filtered = limited | (parameters.top_p < 1)
        for group, draw in ((drawn & ~filtered, _plain), (drawn & filtered, _filtered)):
            rows = np.flatnonzero(group)
            if rows.size:
                some = parameters.rows(rows)
                values = _rows(logits, rows) - _rows(best, rows)
                values /= _column(some.temperature, values)
                _put(chosen, rows, draw(values, some))
    return torch.where(best > -torch.inf, chosen, NOTHING).squeeze(1)  # nor is what is no number


def _plain(scaled: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Tokens `[n, 1]` by chance, of logits `[n, vocabulary]` whose best is 0."""
    every = torch.arange(scaled.shape[1], device=scaled.device)
    return _race(scaled, every, parameters)


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
    # The fewest most likely tokens that reach the mass wanted; with top-p 1 it is not left to rounding.
    kept = (sums - weights < wanted) | _column(parameters.top_p >= 1, scaled)
    kept &= ranks < limits
    chosen = _race(values.masked_fill(~kept, -torch.inf), tokens, parameters)
    if beyond.size:
        short = _rows(sums[:, -1:] < wanted, beyond).squeeze(1).cpu().numpy()
        rows = beyond[short]
        if rows.size:
            some = parameters.rows(rows)
            values = _cut_to_nucleus(_rows(scaled, rows), _rows(wanted, rows))
            _put(chosen, rows, _plain(values, some))
    return chosen


def _cut_to_nucleus(scaled: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Leaves the fewest most likely tokens whose weights reach what is wanted, `[n, 1]`.

    A histogram of the weights tells the bin in which that is; only the tokens of that bin are sorted.
    """
    bins = (scaled * -_BINS_PER_NAT).clamp_(max=_BINS - 1).to(torch.int64)
    weights = scaled.double().exp()
    masses = weights.new_zeros(scaled.shape[0], _BINS).scatter_add_(1, bins, weights)
    sums = masses.cumsum(1)
    border = (sums < wanted).sum(1, keepdim=True).clamp_(max=_BINS - 1)
    inside = bins == border
    most = max(1, int(inside.sum(1).max()))  # nothing, if rounding wants more than there is
    tokens = top_tokens(scaled.masked_fill(~inside, -torch.inf), most)
    parts = weights.gather(1, tokens).masked_fill_(~inside.gather(1, tokens), 0.0)
    before = (sums - masses).gather(1, border) + parts.cumsum(1) - parts
    kept = bins < border
    # A row with fewer tokens in its bin than another has some of other bins here, which stay as they are.
    kept.scatter_(1, tokens, kept.gather(1, tokens) | ((parts > 0) & (before < wanted)))
    return scaled.masked_fill(~kept, -torch.inf)


def _race(values: torch.Tensor, tokens: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """The tokens `[n, 1]` that win, of float32 values `[n, m]`; `tokens` is `[n, m]`, or `[m]` for all."""
    start = _column(starts(parameters.seeds, parameters.steps).view(np.int64), values)
    scores = torch.empty_like(values)
    count, width = values.shape
    # A CPU is fastest with what its cache holds.
    at_once = max(1, _CACHED // width) if values.device.type == "cpu" else count
    for first in range(0, count, at_once):
        part = slice(first, first + at_once)
        some = tokens if tokens.ndim == 1 else tokens[part]
        torch.sub(values[part], exponentials(start[part], some).log_(), out=scores[part])
    if parameters.min_p.any():
        with np.errstate(divide="ignore"):
            floor = np.log(parameters.min_p)
        scores.masked_fill_(values < _column(floor, values), -torch.inf)
    winners = scores.argmax(1, keepdim=True)
    return winners if tokens.ndim == 1 else tokens.gather(1, winners)


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
