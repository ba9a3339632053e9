"""Choosing a token for each row of logits, each row with parameters of its own.

The filters apply in this order: temperature, top-k, top-p (of what top-k has left), min-p. A token is
drawn by a race: each one gets an exponential variate that depends on seed, step and token only, and the
largest `logit - log(variate)` wins (the Gumbel-max trick). So what a filter drops, or a last bit of
rounding, does not move the others' draws, as it would in a cumulative sum over the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pie_inference.sampling.order import top_tokens
from pie_inference.sampling.philox import exponentials

NUCLEUS = 256  # tokens that are sorted for top-p before the whole vocabulary is
NOTHING = -1  # chosen where every token is ruled out


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to choose, a row each, on the device of the logits."""

    temperature: torch.Tensor  # [n] float32; 0 takes the most likely token
    top_k: torch.Tensor  # [n] int64; 0 is all
    top_p: torch.Tensor  # [n] float32; 0 is the most likely token alone
    min_p: torch.Tensor  # [n] float32
    seeds: torch.Tensor  # [n, 2] int64: low and high word
    steps: torch.Tensor  # [n] int64

    def rows(self, index: torch.Tensor) -> Parameters:
        """The parameters of some rows."""
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
    chosen = top_tokens(logits, 1).squeeze(1)
    best = logits.gather(1, chosen[:, None])
    chosen[best.squeeze(1) == -torch.inf] = NOTHING
    drawn = (parameters.temperature > 0) & (parameters.top_p > 0) & (parameters.top_k != 1)
    rows = torch.nonzero(drawn & (chosen >= 0)).squeeze(1)
    if rows.numel():
        some = parameters.rows(rows)
        scaled = (logits[rows] - best[rows]) / some.temperature[:, None]
        chosen[rows] = _draw(scaled, some)
    return chosen


def _draw(scaled: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Tokens `[n]` by chance, of logits `[n, vocabulary]` whose best is 0."""
    vocabulary = scaled.shape[1]
    limited = (parameters.top_k > 0) & (parameters.top_k < vocabulary)
    filtered = limited | (parameters.top_p < 1)
    chosen = torch.empty(scaled.shape[0], dtype=torch.int64, device=scaled.device)
    rows = torch.nonzero(~filtered).squeeze(1)
    if rows.numel():
        every = torch.arange(vocabulary, device=scaled.device)
        chosen[rows] = _race(scaled[rows], every, parameters.rows(rows))
    rows = torch.nonzero(filtered).squeeze(1)
    if rows.numel():
        most = torch.where(limited[rows], parameters.top_k[rows], NUCLEUS)
        width = min(int(most.max()), vocabulary)
        chosen[rows] = _filtered(scaled[rows], parameters.rows(rows), width)
    return chosen


def _filtered(scaled: torch.Tensor, parameters: Parameters, width: int) -> torch.Tensor:
    """As `_draw`, where top-k or top-p is set: sorts `width` tokens, and all only where those are too few."""
    vocabulary = scaled.shape[1]
    tokens = top_tokens(scaled, width)
    values = scaled.gather(1, tokens)
    limit = torch.where(parameters.top_k > 0, parameters.top_k, vocabulary)[:, None]
    ranks = torch.arange(width, device=scaled.device)
    weights = values.double().exp().masked_fill_(ranks >= limit, 0.0)
    sums = weights.cumsum(1)
    mass = sums[:, -1:]
    if width < vocabulary and bool((parameters.top_k == 0).any()):
        mass = torch.where(
            limit == vocabulary, scaled.exp().sum(1, keepdim=True, dtype=torch.float64), mass
        )
    wanted = parameters.top_p.double()[:, None] * mass
    # The fewest most likely tokens that reach the mass wanted; with top-p 1 it is not left to rounding.
    kept = ((sums - weights < wanted) | (parameters.top_p >= 1)[:, None]) & (ranks < limit)
    chosen = _race(values.masked_fill(~kept, -torch.inf), tokens, parameters)
    if width < vocabulary:
        short = torch.nonzero((limit > width) & (sums[:, -1:] < wanted))[:, 0]
        if short.numel():
            chosen[short] = _filtered(scaled[short], parameters.rows(short), vocabulary)
    return chosen


def _race(values: torch.Tensor, tokens: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """The tokens `[n]` that win, of float32 values `[n, m]`; `tokens` is `[n, m]`, or `[m]` for all."""
    floor = parameters.min_p.log()[:, None]  # minus infinity without a min-p
    variates = exponentials(parameters.seeds, parameters.steps, tokens)
    scores = (values - variates.log_()).masked_fill_(values < floor, -torch.inf)
    winners = scores.argmax(1, keepdim=True)
    if tokens.ndim == 1:
        return winners.squeeze(1)
    return tokens.gather(1, winners).squeeze(1)
