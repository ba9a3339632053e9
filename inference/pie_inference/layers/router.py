"""Which experts a token goes through, and with which weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen by their scores.

    By default the scores are a softmax over all experts, and those of the highest are chosen.
    """

    chosen: int  # a token goes through
    normalized: bool  # the weights of the chosen add up to one
    sigmoid: bool = False  # of each score by itself, in float32, in the place of the softmax
    corrected: bool = False  # a number for each expert is added where it is chosen, not weighed
    groups: int = 1  # of consecutive experts, ranked by the sum of their two highest scores
    chosen_groups: int = 1  # experts of the others are out
    scale: float = 1.0  # of the weights


class Router:
    """Scores experts, and picks a few for each token."""

    def __init__(
        self, product: Linear, routing: Routing, correction: torch.Tensor | None = None
    ) -> None:
        """Takes the product, hidden to a score an expert, and the correction `[experts]`."""
        self._product = product
        self._correction = correction
        self.routing = routing

    def __call__(
        self, x: torch.Tensor, adapters: AdapterRows | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights, float32, and numbers of the experts that tokens `[t, hidden]` go through.

        Returns:
            Both `[t, chosen]`.
        """
        routing = self.routing
        if routing.sigmoid:
            scores = self._product(x.float()).sigmoid()
        else:
            scores = self._product(x)
            if adapters is not None:
                adapters.add_(scores, x, self._product)
            scores = scores.softmax(-1, torch.float32)
        ranks = scores if self._correction is None else scores + self._correction
        if routing.chosen_groups < routing.groups:
            ranks = _within_groups(ranks, routing)
        experts = ranks.topk(routing.chosen).indices
        weights = scores.gather(1, experts)
        if routing.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights if routing.scale == 1.0 else weights * routing.scale, experts


def _within_groups(ranks: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Ranks `[t, experts]`, minus infinity outside each token's groups."""
    grouped = ranks.view(ranks.shape[0], routing.groups, -1)
    best = grouped.topk(2).values.sum(-1).topk(routing.chosen_groups).indices  # [t, chosen groups]
    out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=ranks.device)
    out.scatter_(1, best, False)
    return grouped.masked_fill(out.unsqueeze(-1), float("-inf")).view(ranks.shape)
