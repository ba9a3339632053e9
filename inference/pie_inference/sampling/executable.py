"""A device program as functions on tensors, in order; made once for each program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from pie_inference.sampling import device_operations as operations
from pie_inference.sampling.choose import race
from pie_inference.sampling.device_operations import ALONG, CHANCES, DTYPES, ELEMENTWISE
from pie_inference.sampling.noise import numbers
from pie_py.device_programs.language import VOCABULARY, Kind
from pie_py.device_programs.program import Node, Program

_Action: TypeAlias = Callable[["Rows", list[Any]], torch.Tensor]


class Rows(Protocol):
    """What rows of a step have for a program."""

    logits: torch.Tensor  # [n, vocabulary] float32
    steps: torch.Tensor  # [n] int64
    start: torch.Tensor  # [n, 1] int64, where each row's random numbers begin

    def newest(self, count: int) -> torch.Tensor:
        """The newest tokens, int64 `[n, count]`."""

    def counts(self) -> torch.Tensor:
        """How often each token was generated, int64 `[n, vocabulary]`."""

    def given(self) -> torch.Tensor:
        """Which tokens the text before has, bool `[n, vocabulary]`."""

    def state(self, number: int) -> torch.Tensor:
        """The value of a name, `[n, *sizes]`."""


class Executable:
    """A program, ready to run for any number of rows on one device."""

    def __init__(self, program: Program, vocabulary: int, device: torch.device) -> None:
        """Runs nothing yet; constants are on the device."""
        self.program = program
        self._vocabulary = vocabulary
        self._device = device
        last: dict[int, int] = {}
        for i, node in enumerate(program.nodes):
            last.update(dict.fromkeys(node.operands, i))
        kept = {program.token, *program.next.values()}
        # What each node does, and whose values are not needed any more behind it.
        self._actions = [
            (self._action(node), [j for j in set(node.operands) if last[j] == i and j not in kept])
            for i, node in enumerate(program.nodes)
        ]

    def run(self, rows: Rows) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Tokens, int64 `[n]`, and the next values `[n, *sizes]` by the number of their name."""
        values: list[Any] = []
        for action, done in self._actions:
            values.append(action(rows, values))
            for each in done:
                values[each] = None
        count = len(rows.logits)
        tokens = values[self.program.token].expand(count)
        following = {
            name: values[node].expand(count, *values[node].shape[1:])
            for name, node in self.program.next.items()
        }
        return tokens, following

    def _action(self, node: Node) -> _Action:
        name, operands = node.operation, node.operands
        if not operands:
            return self._given(node)
        if name == "sub" and (stream := self._draws(operands[1])) is not None:
            return partial(_raced, operands[0], stream)
        if name in ELEMENTWISE:
            if len(operands) == 1:
                return _unary(ELEMENTWISE[name], operands[0])
            shapes = [self.program.nodes[i].type.shape for i in operands]
            axes = max(map(len, shapes))
            lacking = tuple(axes - len(shape) for shape in shapes)
            return partial(_aligned, ELEMENTWISE[name], operands, lacking)
        if name in ALONG:
            return _unary(ALONG[name], operands[0])
        if name in CHANCES:
            return partial(_by_chance, CHANCES[name], operands[0], node.attributes[0])
        function = self._own(node)
        return lambda rows, values: function(*[values[i] for i in operands])

    def _given(self, node: Node) -> _Action:
        match node.operation, node.attributes:
            case "logits", _:
                return lambda rows, values: rows.logits
            case "step", _:
                return lambda rows, values: rows.steps
            case "newest", [count]:
                return lambda rows, values: rows.newest(count)
            case "counts", _:
                return lambda rows, values: rows.counts()
            case "given", _:
                return lambda rows, values: rows.given()
            case "state", [number]:
                return lambda rows, values: rows.state(number)
            case "constant", [kind, value]:
                is_float = kind == Kind.FLOAT
                one: float = np.uint32(value).view(np.float32).item() if is_float else value
                made = torch.tensor([one], dtype=DTYPES[Kind(kind)], device=self._device)
            case _, [size]:
                made = torch.arange(self._size(size), device=self._device)[None]
        return lambda rows, values: made

    def _own(self, node: Node) -> operations.Function:
        attributes = node.attributes
        match node.operation:
            case "nucleus":
                return operations.nucleus
            case "cast":
                return lambda x: operations.cast(x, Kind(attributes[0]))
            case "top":
                return lambda x: operations.top(x, attributes[0])
            case "slice":
                return lambda x: x[..., attributes[0] : attributes[1]]
            case "concat":
                return operations.concat
            case "gather":
                return operations.gather
            case "scatter_add":
                return lambda x, places, new: operations.scatter(x, places, new, "sum")
            case "scatter_max":
                return lambda x, places, new: operations.scatter(x, places, new, "amax")
            case "reshape":
                sizes = [self._size(size) for size in attributes]
                return lambda x: x.reshape(len(x), *sizes)
            case "transpose":
                return lambda x: x.transpose(1, 2)
            case "matvec":
                return lambda m, v: torch.matmul(m, v[:, :, None]).squeeze(2)
        raise AssertionError(node)

    def _draws(self, number: int) -> int | None:
        """The stream of a value that is the logarithm of all tokens' exponential variates.

        Those race in one pass, as for the built-in samplers: on a CPU twice as fast.
        """
        nodes = self.program.nodes
        log = nodes[number]
        if log.operation != "log" or nodes[log.operands[0]].operation != "exponential":
            return None
        variates = nodes[log.operands[0]]
        of = nodes[variates.operands[0]]
        all_tokens = of.operation == "iota" and of.attributes == (VOCABULARY,)
        return variates.attributes[0] if all_tokens else None

    def _size(self, size: int) -> int:
        return self._vocabulary if size == VOCABULARY else size


def _unary(function: operations.Function, operand: int) -> _Action:
    return lambda rows, values: function(values[operand])


def _aligned(
    function: operations.Function,
    operands: tuple[int, ...],
    lacking: tuple[int, ...],
    rows: Rows,
    values: list[Any],
) -> torch.Tensor:
    """With new axes behind the rows where a value has fewer of them."""
    found = [values[i] for i in operands]
    for i, axes in enumerate(lacking):
        if axes:
            x = found[i]
            found[i] = x.reshape(len(x), *(1,) * axes, *x.shape[1:])
    return function(*found)


def _by_chance(
    make: operations.Function, operand: int, stream: int, rows: Rows, values: list[Any]
) -> torch.Tensor:
    return operations.drawn(_start(rows, stream), values[operand], make)


def _raced(operand: int, stream: int, rows: Rows, values: list[Any]) -> torch.Tensor:
    """`x - log(exponential(tokens))`."""
    x = values[operand]
    if x.ndim != 2 or x.shape[1] != rows.logits.shape[1]:
        x = x.reshape(len(x), -1).expand(-1, rows.logits.shape[1])
    tokens = torch.arange(x.shape[1], device=x.device)
    return race(x.expand(len(rows.logits), -1), _start(rows, stream), tokens)


def _start(rows: Rows, stream: int) -> torch.Tensor:
    if not stream:
        return rows.start
    return numbers(rows.start, torch.full_like(rows.start, -1 - stream))
