"""Device programs in the layers: what they make of the residual stream before some of them.

A program runs for each row by itself (of a prompt for all its inputs at once, unless it has state),
so that rows with and without are in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pie_inference.sampling.attend_programs import Attender, Version
from pie_inference.sampling.executable import whole_numbers

Lens = Callable[[torch.Tensor], torch.Tensor]  # [n, hidden] to logits [n, vocabulary], float32


class LayerStep:
    """A program in a forward of one sequence."""

    def __init__(self, attender: Attender, step: int, lens: Lens) -> None:
        """Begins a forward after so many choices: 0 is the prompt, of which later parts go on with
        the state of those before.
        """
        self._attender, self._executable, self.lens = attender, attender.executable, lens
        self._values = dict(attender.before(step or 1).values.get(0, {}))
        self._step, self._layer = step, 0
        self._residual = torch.empty(0)
        self._device = attender.device
        self._same = self._executable.same(self)
        self.at = self._executable.program.layers

    @property
    def steps(self) -> torch.Tensor:
        """How many tokens were chosen before, int64 `[1]`."""
        return torch.tensor([self._step], device=self._device)

    def of_layer(self, name: str) -> torch.Tensor:
        """What an operation of the stage alone gives, `[n, *sizes]`."""
        if name == "residual":
            return self._residual
        return whole_numbers(self._layer + 1, self._device)[self._layer :]

    def state(self, number: int) -> torch.Tensor:
        """The value of a name `[1, *sizes]`: as the layer before has left it."""
        return self._values.get(number, self._attender.given[number])

    def run(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """What a layer is given, of what it would be, `[inputs, hidden]` float32."""
        self._layer = layer
        following = self._executable.program.next
        parts = torch.split(x, 1) if following else [x]
        found = torch.cat([self._run(part, following) for part in parts])
        if following and layer == max(self.at):
            self._attender.versions.append(Version(self._step, values={0: self._values}))
        return found

    def _run(self, x: torch.Tensor, following: dict[int, int]) -> torch.Tensor:
        self._residual = x
        values: list[Any] = self._executable.evaluate_layer(self, self._same)
        self._values |= {name: values[node] for name, node in following.items()}
        found: torch.Tensor = values[self._executable.program.token]
        return found.expand(len(x), -1)


class LayerChanges:
    """What programs make of the residual stream of some sequences of a forward."""

    def __init__(self, steps: Sequence[tuple[slice, LayerStep]]) -> None:
        """Takes the inputs of each sequence, and its program."""
        self._steps = steps
        self.at = frozenset(layer for _, step in steps for layer in step.at)

    def before(self, layer: int, x: torch.Tensor) -> None:
        """Changes what a layer is given, `[t, hidden]`, in place."""
        for rows, step in self._steps:
            if layer in step.at:
                x[rows] = step.run(layer, x[rows].float()).to(x.dtype)
