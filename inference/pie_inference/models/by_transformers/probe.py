"""Looks at a module before it is served: what its layers ask, and if rows meet in attention alone.

A module is right under the paged attention if, attention aside, what it computes of an input is a
function of that input and its position, and if its attention is what `layers.py` knows. Both are
tried on the module itself, with its weights; what fails is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from pie_inference.attention import Window
from pie_inference.attention.scores import softmax_beside
from pie_inference.errors import LoadError
from pie_inference.memory.embeds import ImageInputs
from pie_inference.models.by_transformers.interface import Asked, Attend, MaskFunction, Mixer
from pie_inference.models.by_transformers.layers import Call, Layers, window_of
from pie_inference.models.by_transformers.states import Remembered, StateSizes

ROWS = 24  # of the texts that are tried
# Largest errors of rows, relative to them, that rounding explains.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}
Run = Callable[[torch.Tensor, torch.Tensor, Attend], torch.Tensor]


class Whole(Attend):
    """Attention of one text, by its definition; notes what the layers ask."""

    def __init__(self, positions: int, images: ImageInputs | None = None) -> None:
        """Takes how many positions the model has, and an image whose inputs see each other."""
        self._images = images
        self.calls: list[Call] = []
        self.windows: list[Window | None] = []
        self.states: list[StateSizes] = []
        self._positions = positions
        self._masks: dict[int, tuple[torch.Tensor, MaskFunction]] = {}

    def mask(self, rows: int, seen: MaskFunction, device: torch.device) -> torch.Tensor:
        """See `Attend.mask`. Modules may cut it, so it is known by where it begins."""
        own = torch.arange(rows, device=device)
        none = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
        made = seen(none, none, own.view(1, 1, -1, 1), own.view(1, 1, 1, -1)).contiguous()
        if self._images is not None:
            first = torch.full_like(own, -1)
            first[self._images.rows] = self._images.rows - self._images.places[:, 0]
            made = made | ((first[:, None] == first) & (first[:, None] >= 0))
        self._masks[made.data_ptr()] = made, lambda *at: seen(*(x.to(device) for x in at)).cpu()
        return made

    def attend(self, asked: Asked) -> torch.Tensor:
        """See `Attend.attend`."""
        call = Call.of(asked)
        mask = asked.mask
        if mask is None or mask.data_ptr() not in self._masks:
            raise LoadError(f"{type(asked.module).__name__} has a mask of its own")
        self.calls.append(call)
        self.windows.append(window_of(self._masks[mask.data_ptr()][1], self._positions))
        query, key, value = (x[0].float() for x in (asked.query, asked.key, asked.value))
        group = call.heads // call.kv_heads
        scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * asked.scale
        if asked.softcap:
            scores = (scores / asked.softcap).tanh() * asked.softcap
        if asked.slopes is not None:
            scores += asked.slopes.view(-1, 1, 1) * torch.arange(key.shape[1], device=key.device)
        scores = scores.masked_fill(~mask[0, 0], float("-inf"))
        sinks = None if asked.sinks is None else asked.sinks.float().view(-1, 1, 1)
        found = softmax_beside(scores, sinks) @ value.repeat_interleave(group, 0)
        return found.transpose(0, 1)[None].to(asked.value.dtype).contiguous()

    def mix(self, hidden: torch.Tensor, mixer: Mixer) -> torch.Tensor:
        """See `Attend.mix`. Raises `LoadError` if the layer does not go on from its state."""
        remembered = Remembered()
        found = mixer(hidden, remembered)
        sizes = StateSizes.of(hidden, remembered)
        self.states.append(sizes)
        seen = hidden.new_zeros(1, sizes.history, sizes.seen)
        state = torch.zeros(1, *sizes.state, device=hidden.device) if sizes.state else None
        for first, end in pairwise((0, 5, 6, 7, hidden.shape[1])):
            part = Remembered(seen[:, seen.shape[1] - sizes.history :], state)
            made = mixer(hidden[:, first:end], part)
            if not alike(made[0], found[0, first:end]):
                raise LoadError("it has layers that do not go on from a state")
            seen, state = torch.cat([seen, part.numbers(hidden[:, first:end])], 1), part.state
        return found


class Apart(Attend):
    """In the place of attention a function of each row alone; notes what rows bring to it."""

    def __init__(self) -> None:
        """Nothing is noted yet."""
        self.brought: list[torch.Tensor] = []  # [rows, numbers] of each layer

    def attend(self, asked: Asked) -> torch.Tensor:
        """See `Attend.attend`."""
        call = Call.of(asked)
        rows = [x[0].transpose(0, 1) for x in (asked.query, asked.key, asked.value)]
        self.brought.append(torch.cat([x.flatten(1) for x in rows], 1))
        value = rows[2].repeat_interleave(call.heads // call.kv_heads, 1)
        return (value + rows[0].mean(2, keepdim=True) + rows[1].mean((1, 2), keepdim=True))[None]

    def mix(self, hidden: torch.Tensor, mixer: Mixer) -> torch.Tensor:
        """See `Attend.mix`: each row is a text."""
        self.brought.append(hidden[0])
        return mixer(hidden.transpose(0, 1), Remembered()).transpose(0, 1)


def layers_of(run: Run, embeds: torch.Tensor, positions: int) -> tuple[Layers, torch.Tensor]:
    """The requests of the layers of a module, and its hidden states of one text `[rows, hidden]`.
    Raises `LoadError` if it asks what this attention does not know.
    """
    whole = Whole(positions)
    hidden = run(embeds, torch.arange(len(embeds), device=embeds.device), whole)
    if not whole.calls:
        raise LoadError(
            "its layers compute attention without transformers' interface, or have none"
        )
    return Layers(whole.calls, whole.windows, whole.states), hidden


def rows_apart(run: Run, embeds: torch.Tensor, positions: int, layers: int) -> None:
    """Raises `LoadError` unless rows of a module are independent, attention aside: of the same
    inputs, in another order among others, it makes the same.
    """
    rows = len(embeds)
    some = torch.Generator().manual_seed(0)
    at = torch.randint(0, positions, (rows,), generator=some).to(embeds.device)
    order = torch.randperm(rows, generator=some).to(embeds.device)
    own = order < rows // 2  # places of the second run that hold inputs of the first
    others = embeds.roll(1, 0)[order], at.roll(1)[order]
    second = (
        torch.where(own[:, None], embeds[order], others[0]),
        torch.where(own, at[order], others[1]),
    )
    apart, again = Apart(), Apart()
    first_found = [run(embeds, at, apart), *apart.brought]
    second_found = [run(*second, again), *again.brought]
    if len(apart.brought) != layers or len(again.brought) != layers:
        raise LoadError("its layers do not attend in each forward alike")
    if not alike(run(embeds[:1], at[:1], Apart()), first_found[0][:1]):
        raise LoadError("an input alone is computed otherwise than among others")
    for one, other in zip(first_found, second_found, strict=True):
        if not alike(one[order[own]], other[own]):
            raise LoadError(
                "inputs depend on others outside its attention: a state, or a convolution"
            )


def alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """True if rows `[n, numbers]` are the same but for rounding; none of them has no number."""
    error = (found.float() - wanted.float()).norm(dim=1)
    scale = wanted.float().norm(dim=1)
    return bool((error <= TOLERANCE[wanted.dtype] * scale.clamp_min(1e-6)).all())
