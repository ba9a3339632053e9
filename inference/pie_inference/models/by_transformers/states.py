"""Layers that keep a state in the place of keys and values, over the states of `memory/states.py`.

Such a layer of transformers' asks a cache for what its convolutions saw before, and for the state
before its first token. A slot holds the layer's input and what its convolutions see of it: so the
layer itself can compute each state again, and need not be known by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from pie_inference.attention.recurrent import PreparedStates
from pie_inference.errors import LoadError
from pie_inference.models.by_transformers.interface import Mixer, asked
from pie_inference.models.shape import RecurrentShape


class Remembered:
    """The object that the layer's code takes for its cache: of runs of tokens, of equal length."""

    def __init__(self, seen: torch.Tensor | None = None, state: torch.Tensor | None = None) -> None:
        """Takes what convolutions saw `[runs, history, numbers]`, and the states `[runs, ...]`."""
        self._before, self.state = seen, state
        self.seen: list[torch.Tensor] = []  # [runs, tokens, numbers], a convolution each
        self.history = 0

    def numbers(self, tokens: torch.Tensor) -> torch.Tensor:
        """The inputs of all convolutions for these tokens, `[runs, tokens, numbers]`."""
        return torch.cat([tokens[..., :0], *self.seen], 2)

    def get_conv_state(self, *_: Any, **__: Any) -> None:
        """None: what was seen before comes with `update_conv_state`."""

    def is_recording_past(self, *_: Any) -> bool:
        """False: nothing is taken back here."""
        return False

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """The state before the tokens; None for zeros. It may be changed in place."""
        if state_idx:
            raise LoadError("it has several states in a layer")
        return self.state

    def update_recurrent_state(self, recurrent_states: torch.Tensor, *_: Any, **__: Any) -> None:
        """Takes the state after the tokens."""
        self.state = recurrent_states

    def update_conv_state(
        self, conv_states: torch.Tensor, *_: Any, conv_kernel_size: int, **__: Any
    ) -> torch.Tensor:
        """The input of a convolution: the tokens `[runs, numbers, tokens]`, behind those before."""
        self.history = max(self.history, conv_kernel_size - 1)
        first = sum(seen.shape[2] for seen in self.seen)
        self.seen.append(conv_states.transpose(1, 2))
        width = conv_states.shape[1]
        if self._before is None:
            before = conv_states.new_zeros(len(conv_states), width, self.history)
        else:
            before = self._before[..., first : first + width].transpose(1, 2)
        return torch.cat([before.to(conv_states.dtype), conv_states], 2)


class StateSizes(NamedTuple):
    """Sizes of a layer: its input, what its convolutions see and how far back, its state."""

    hidden: int
    seen: int
    history: int
    state: tuple[int, ...]  # none without one

    @staticmethod
    def of(hidden: torch.Tensor, remembered: Remembered) -> StateSizes:
        """Of a layer that has read a text."""
        seen, state = sum(s.shape[2] for s in remembered.seen), remembered.state
        sizes = () if state is None else tuple(state.shape[1:])
        return StateSizes(hidden.shape[2], seen, remembered.history, sizes)

    def shape(self, layers: int) -> RecurrentShape:
        """Of so many layers, for the pools. Raises `LoadError` for a state of many dimensions."""
        if len(self.state) > 3:
            raise LoadError("it has states of more than three dimensions")
        heads, keys, values = (1,) * (3 - len(self.state)) + self.state
        width = self.hidden + self.seen
        return RecurrentShape(layers, width, self.history, heads, keys, values)


def give_states(module: nn.Module) -> None:
    """Puts our states where a module's layers would ask a cache for theirs."""
    for part in module.modules():
        forward = type(part).forward
        if "cache" in inspect.signature(forward).parameters:
            source = inspect.getsource(forward)
            if "update_conv_state(" in source or "update_recurrent_state(" in source:
                part.forward = partial(_mixed, part.forward)


def _mixed(own: Callable[..., Any], *given: Any, **more: Any) -> Any:
    by = asked()
    assert by is not None
    hidden = given[0] if given else more["hidden_states"]
    return by.mix(hidden, lambda tokens, cache: own(tokens, cache=cache))


def over_states(
    states: PreparedStates, number: int, sizes: StateSizes, hidden: torch.Tensor, mixer: Mixer
) -> torch.Tensor:
    """The output of that one of the layers with a state, for inputs `[1, rows, hidden]`."""
    width = sizes.hidden
    slots = torch.cat([hidden[0], hidden.new_zeros(hidden.shape[1], sizes.seen)], 1)
    states.store(number, slots)
    made = torch.empty_like(hidden[0])
    for segment in states.segments:
        tokens, after = segment.tokens(number), segment.start(number)
        inputs = tokens[:, sizes.history :, :width]
        found, seen = torch.zeros_like(inputs), tokens[:, sizes.history :, width:]
        for length, silent, runs in segment.alike():
            some, before = inputs[runs, :length], tokens[runs, : sizes.history, width:]
            start = after[runs].reshape(-1, *sizes.state) if sizes.state else None
            first = Remembered(before, None if start is None else start.clone())
            found[runs, :length] = mixer(some, first)
            seen[runs, :length] = first.numbers(some)
            if silent:  # the last token reads, and does not write
                first = Remembered(before, start)
                if length > 1:
                    mixer(some[:, :-1], first)
            if first.state is not None:
                after[runs] = first.state.float().reshape(len(runs), *after.shape[1:])
        segment.keep(number, after)
        segment.complete(number, width, seen)
        rows = found.flatten(0, 1).index_select(0, segment.reads)
        made.index_copy_(0, segment.places, rows)
    return made[None]
