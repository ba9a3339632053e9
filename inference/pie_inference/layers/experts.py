"""A feed-forward block that is a mixture of experts, and its router."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.feed_forward import FeedForward, Gate, GatedMlp
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows, adapted


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
        """Weights, float32, and numbers of the experts that tokens `[t, hidden]` go through: both
        `[t, chosen]`.
        """
        routing = self.routing
        if routing.sigmoid:
            scores = self._product(x.float()).sigmoid()
        else:
            scores = adapted(self._product, x, adapters).softmax(-1, torch.float32)
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


# Major compute capabilities whose grouped products do not ask the host for the groups.
GROUPING = (9, 10)
GROUPED_MULTIPLE = 8  # of bfloat16 numbers in a row of what they multiply


def groups(dtype: torch.dtype, device: torch.device, *sizes: int) -> bool:
    """True if experts of such sizes, hidden and inner, are multiplied all in one product."""
    return (
        device.type == "cuda"
        and dtype == torch.bfloat16
        and torch.cuda.get_device_capability(device)[0] in GROUPING
        and all(size % GROUPED_MULTIPLE == 0 for size in sizes)
    )


@dataclass(frozen=True, slots=True)
class Stacked:
    """The weights of all experts side by side: gate and up `[experts, 2 * inner, hidden]`, down;
    and the biases, if they have any.
    """

    gate_up: torch.Tensor
    down: torch.Tensor  # [experts, hidden, inner]
    gate_up_bias: torch.Tensor | None = None  # [experts, 2 * inner]
    down_bias: torch.Tensor | None = None  # [experts, hidden]

    @classmethod
    def empty(
        cls,
        experts: int,
        hidden: int,
        inner: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Stacked:
        """Room for them."""

        def room(*shape: int) -> torch.Tensor:
            return torch.empty((experts, *shape), dtype=dtype, device=device)

        return cls(
            room(2 * inner, hidden),
            room(hidden, inner),
            room(2 * inner) if bias else None,
            room(hidden) if bias else None,
        )


class Experts(FeedForward):
    """Sparsely gated mixture (Shazeer et al. 2017): a router picks a few of many blocks a token."""

    def __init__(
        self,
        router: Router,
        experts: list[GatedMlp],
        gate: Gate,
        stacked: Stacked | None = None,
    ) -> None:
        """Makes a mixture of blocks with one gate. Where one product serves for all blocks, their
        weights are views of `stacked`.
        """
        self._router = router
        self._experts = experts
        self._gate = gate
        self._stacked = stacked
        if stacked is not None:
            self._ids = torch.arange(len(experts), device=stacked.down.device)

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`: the weighted sum of what a token's experts say."""
        if not x.shape[0]:
            return x
        weights, experts = self._router(x, adapters)
        # The tokens that go to an expert lie side by side.
        owners, order = experts.view(-1).sort(stable=True)
        sources = order // weights.shape[1]
        if self._stacked is None or self._adapted(adapters):
            sorted_rows = self._one_by_one(x, owners, sources, adapters)
        else:
            sorted_rows = self._together(self._stacked, x, owners, sources)
        rows = torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)
        # Summed in the order of a token's experts: a sum that does not depend on the batch.
        weighted = rows.view(*weights.shape, -1) * weights.to(x.dtype).unsqueeze(-1)
        return weighted.sum(1)

    def _together(
        self, stacked: Stacked, x: torch.Tensor, owners: torch.Tensor, sources: torch.Tensor
    ) -> torch.Tensor:
        """The experts' output for their rows, by two products, without a wait for row counts."""
        ends = torch.searchsorted(owners, self._ids, right=True, out_int32=True)
        part = x.index_select(0, sources)
        both = F.grouped_mm(part, stacked.gate_up.transpose(1, 2), offs=ends)
        if stacked.gate_up_bias is not None:
            both += stacked.gate_up_bias.index_select(0, owners)
        y = F.grouped_mm(self._gate(both), stacked.down.transpose(1, 2), offs=ends)
        if stacked.down_bias is not None:
            y += stacked.down_bias.index_select(0, owners)
        return y

    def _one_by_one(
        self,
        x: torch.Tensor,
        owners: torch.Tensor,
        sources: torch.Tensor,
        adapters: AdapterRows | None,
    ) -> torch.Tensor:
        """As `_together`, by products per expert with rows: the host must know which have."""
        found: list[torch.Tensor] = []
        start = 0
        counts = owners.bincount(minlength=len(self._experts)).tolist()
        for expert, count in zip(self._experts, counts, strict=True):
            if count:  # most have none when few tokens are decoded
                rows = sources[start : start + count]
                part = x.index_select(0, rows)
                found.append(expert(part, _adapters_of(expert, rows, adapters)))
                start += count
        return torch.cat(found)

    def _adapted(self, adapters: AdapterRows | None) -> bool:
        """True if adapters change an expert."""
        return adapters is not None and any(adapters.reach(*e.layers) for e in self._experts)


def _adapters_of(
    expert: GatedMlp, rows: torch.Tensor, adapters: AdapterRows | None
) -> AdapterRows | None:
    """Adapters of the rows that go to an expert, if they change it."""
    if adapters is None or not adapters.reach(*expert.layers):
        return None
    return adapters.select(rows)


class WithShared(FeedForward):
    """A mixture, and a block that every token goes through, with a weight of its own or without."""

    def __init__(self, mixture: Experts, shared: GatedMlp, gate: Linear | None) -> None:
        """Takes the parts; `gate` gives the number whose sigmoid weighs the shared block."""
        self._mixture = mixture
        self._shared = shared
        self._gate = gate

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`."""
        if not x.shape[0]:
            return x
        if self._gate is None:
            return self._shared.add_to(self._mixture(x, adapters), x, adapters)
        weight = adapted(self._gate, x, adapters)
        return self._mixture(x, adapters) + weight.sigmoid() * self._shared(x, adapters)
