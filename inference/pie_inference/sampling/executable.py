"""A device program as functions on tensors, in order; made once for each program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch

from pie_inference.device import upload
from pie_inference.sampling import device_operations as operations
from pie_inference.sampling.choose import NO_NUMBER, NOTHING, race
from pie_inference.sampling.device_operations import ALONG, CHANCES, ELEMENTWISE, OWN
from pie_inference.sampling.noise import numbers
from pie_py.device_programs.bound import ARRAYS
from pie_py.device_programs.language import VOCABULARY, Kind
from pie_py.device_programs.program import Node, Program

# What rows of a step have for a program: `Rows` of device programs, an `AttendStep` in layers.
Rows: TypeAlias = Any
Action: TypeAlias = Callable[[Rows, list[Any]], torch.Tensor]


def whole_numbers(size: int, device: torch.device) -> torch.Tensor:
    """0, 1, 2 and so on, int64 `[size]`: for all programs the same memory."""
    return _whole_numbers(1 << max(16, (size - 1).bit_length()), device)[:size]


@cache
def _whole_numbers(size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(size, device=device)


class Executable:
    """A program, ready to run for any number of rows on one device."""

    def __init__(self, program: Program, vocabulary: int, device: torch.device) -> None:
        """Runs nothing yet; constants are on the device."""
        self.program = program
        self._vocabulary = vocabulary
        self._device = device
        token = program.nodes[program.token]
        compared = token.operands if token.operation == "argmax" else ()
        self._compared = [i for i in compared if program.nodes[i].type.kind == Kind.FLOAT]
        kept = {program.token, *self._compared, *program.next.values()}
        operands = self._operands(kept)
        last = {each: i for i, of in operands.items() for each in of}
        # What each node does that is needed, and whose values are not behind it.
        self._actions = [
            (i, self._action(program.nodes[i]), [j for j in of if last[j] == i and j not in kept])
            for i, of in operands.items()
        ]

    def _operands(self, kept: set[int]) -> dict[int, set[int]]:
        """The nodes that the kept ones need, in order, and what each is made of."""
        needed, found = set(kept), {}
        for i in reversed(range(len(self.program.nodes))):
            if i not in needed:
                continue
            found[i] = set(self._operands_of(self.program.nodes[i]))
            needed |= found[i]
        return dict(reversed(found.items()))

    def _operands_of(self, node: Node) -> Sequence[int]:
        """The nodes that one is computed of."""
        return node.operands[:1] if self._race_of(node) is not None else node.operands

    def run(self, rows: Rows) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Tokens, int64 `[n]`, and the next values `[n, *sizes]` by the number of their name."""
        values = self.evaluate(rows)
        count = len(rows.logits)
        tokens = values[self.program.token].expand(count)
        for i in self._compared:
            tokens = _numbered(tokens, values[i])
        following = {
            name: values[node].expand(count, *values[node].shape[1:])
            for name, node in self.program.next.items()
        }
        return tokens, following

    def evaluate(self, rows: Rows) -> list[Any]:
        """The values of nodes, of which those are there that are a result or a next value."""
        values: list[Any] = [None] * len(self.program.nodes)
        for number, action, done in self._actions:
            values[number] = action(rows, values)
            for each in done:
                values[each] = None
        return values

    def origin_of_nan(self, rows: Rows, row: int) -> int:
        """The node that has made what is no number, or infinite, in a row whose token is none: all
        is computed once more, and followed from the token back.
        """
        values: list[Any] = [None] * len(self.program.nodes)
        for number, action, _ in self._actions:
            values[number] = action(rows, values)
        number, guilty = self.program.token, self._compared
        while guilty:
            number = guilty[0]
            operands = self._operands_of(self.program.nodes[number])
            guilty = [each for each in operands if not _is_number(values[each], row)]
        return number

    def _action(self, node: Node) -> Action:
        name, operands = node.operation, node.operands
        if not operands:
            return self._given(node)
        if (stream := self._race_of(node)) is not None:
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
        if name == "lens":
            return lambda rows, values: rows.lens(values[operands[0]])
        if name in CHANCES:
            return partial(_by_chance, CHANCES[name], operands[0], node.attributes[0])
        function, attributes = OWN[name], [self._size(each) for each in node.attributes]
        return lambda rows, values: function(*[values[i] for i in operands], *attributes)

    def _given(self, node: Node) -> Action:
        match node.operation, node.attributes:
            case "logits", _:
                return lambda rows, values: rows.logits
            case "step", _:
                return lambda rows, values: rows.steps
            case "newest" | "counts" | "given" | "beside" | "state" | "in_layers" as name, numbers:
                return lambda rows, values: getattr(rows, name)(*numbers[:1])
            case "constant", [kind, value]:
                one = np.array([value], np.uint32 if kind == Kind.FLOAT else np.int64)
                bits = one.view(np.float32) if kind == Kind.FLOAT else one
                made = upload(bits.astype(ARRAYS[Kind(kind)]), self._device)
            case _, [size]:
                made = whole_numbers(self._size(size), self._device)[None]
        return lambda rows, values: made

    def _race_of(self, node: Node) -> int | None:
        """The stream, if a node takes the logarithm of all tokens' exponential variates off a value
        `[vocabulary]`.

        Those race in one pass, as for the built-in samplers: on a CPU twice as fast.
        """
        nodes = self.program.nodes
        if node.operation != "sub" or nodes[node.operands[0]].type.shape != (VOCABULARY,):
            return None
        log = nodes[node.operands[1]]
        if log.operation != "log" or nodes[log.operands[0]].operation != "exponential":
            return None
        variates = nodes[log.operands[0]]
        of = nodes[variates.operands[0]]
        all_tokens = of.operation == "iota" and of.attributes == (VOCABULARY,)
        return variates.attributes[0] if all_tokens else None

    def _size(self, size: int) -> int:
        return self._vocabulary if size == VOCABULARY else size


def _is_number(x: torch.Tensor, row: int) -> bool:
    """True if all of a row is, or minus infinity."""
    own = x[row if len(x) > 1 else 0]
    return not own.dtype.is_floating_point or bool((own < torch.inf).all())


def _unary(function: operations.Function, operand: int) -> Action:
    return lambda rows, values: function(values[operand])


def _numbered(tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The likeliest tokens `[n]` by `x`: none where all are ruled out, or that is no number or one
    of several infinities.
    """
    x = x.expand(len(tokens), -1)
    best = x.gather(-1, tokens[:, None]).squeeze(-1)
    if x.device.type == "cpu" and bool(best.isfinite().all()):
        return tokens
    tokens = tokens.masked_fill(best == -torch.inf, NOTHING)
    several = (x == torch.inf).sum(-1) > 1
    return tokens.masked_fill(best.isnan() | several, NO_NUMBER)


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
    count, vocabulary = rows.logits.shape
    tokens = whole_numbers(vocabulary, rows.logits.device)
    return race(values[operand].expand(count, -1), _start(rows, stream), tokens)


def _start(rows: Rows, stream: int) -> torch.Tensor:
    start: torch.Tensor = rows.start
    return numbers(start, torch.full_like(start, -1 - stream)) if stream else start
