"""Device programs in the layers: what they make of the residual stream before some of them.

Rows with and without are in one batch. Those that have the same program run it together, a prompt
all its inputs at once unless the program has state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from pie_inference.sampling.attend_programs import Attender, Lens, Version
from pie_inference.sampling.executable import whole_numbers


class LayerStep:
    """A program in a forward of one sequence."""

    def __init__(self, attender: Attender, step: int, lens: Lens) -> None:
        """Begins a forward after so many choices: 0 is the prompt, of which later parts go on with
        the state of those before.
        """
        self.executable, self.lens, self.step = attender.executable, lens, step
        self.at = attender.executable.program.layers
        self._attender = attender
        # Of a prompt whose last input counts none of its parts goes on from those before.
        goes_on = attender.executable.program.window == 0
        self._values = dict(attender.before(step or int(goes_on)).values.get(0, {}))

    def state(self, number: int) -> torch.Tensor:
        """The value of a name `[1, *sizes]`: as the layer before has left it."""
        return self._values.get(number, self._attender.given[number])

    def note(self, layer: int, values: dict[int, torch.Tensor]) -> None:
        """Takes the values that a layer has left `[1, *sizes]`, the last one those of the step."""
        self._values |= values
        if values and layer == max(self.at):
            self._attender.versions.append(Version(self.step, values={0: self._values}))


class _Rows:
    """The inputs that rows of several sequences have for their program in a layer: one of each, or
    all of the only one.
    """

    sizes: Mapping[int, int] = MappingProxyType({})  # of the context it has none

    def __init__(self, steps: Sequence[LayerStep], layer: int, x: torch.Tensor) -> None:
        self.lens, self._steps, self._layer, self._residual = steps[0].lens, steps, layer, x

    @property
    def steps(self) -> torch.Tensor:
        """How many tokens were chosen before, int64 `[n]`."""
        return torch.tensor([each.step for each in self._steps], device=self._residual.device)

    def of_layer(self, name: str) -> torch.Tensor:
        """The result of an operation of the stage alone, `[n, *sizes]`."""
        if name == "residual":
            return self._residual
        return whole_numbers(self._layer + 1, self._residual.device)[self._layer :]

    def state(self, number: int) -> torch.Tensor:
        """The value of a name, `[n, *sizes]`."""
        return torch.cat([each.state(number) for each in self._steps])


def _run(steps: Sequence[LayerStep], layer: int, x: torch.Tensor) -> torch.Tensor:
    """The result of a layer in place of its own, `[n, hidden]`: a row of each sequence, or all
    rows of the only one, whose program has no state then.
    """
    rows, executable = _Rows(steps, layer, x), steps[0].executable
    values: list[Any] = executable.evaluate_layer(rows, executable.same(rows))
    program = executable.program
    for i, step in enumerate(steps):
        own = {name: values[node] for name, node in program.next.items()}
        step.note(layer, {name: v[i : i + 1] if len(v) > 1 else v for name, v in own.items()})
    found: torch.Tensor = values[program.token]
    return found.expand(len(x), -1)


class LayerChanges:
    """Programs that change the residual stream of some sequences of a forward."""

    def __init__(self, steps: Sequence[tuple[slice, LayerStep]]) -> None:
        """Takes the inputs of each sequence, and its program."""
        self.at = frozenset(layer for _, step in steps for layer in step.at)
        # Rows that run together: a token each of the sequences with one program, or a prompt.
        self._groups: list[tuple[list[int], list[LayerStep]]] = []
        alike: dict[int, tuple[list[int], list[LayerStep]]] = {}
        for rows, step in steps:
            inputs = list(range(rows.start, rows.stop))
            if len(inputs) > 1:
                parts = [[i] for i in inputs] if step.executable.program.next else [inputs]
                self._groups += [(part, [step]) for part in parts]
                continue
            group = alike.setdefault(id(step.executable), ([], []))
            group[0].extend(inputs)
            group[1].append(step)
        self._groups += alike.values()

    def before(self, layer: int, x: torch.Tensor) -> None:
        """Changes what a layer is given, `[t, hidden]`, in place."""
        for rows, steps in self._groups:
            if layer in steps[0].at:
                x[rows] = _run(steps, layer, x[rows].float()).to(x.dtype)
