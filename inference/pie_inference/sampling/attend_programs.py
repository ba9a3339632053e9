"""Device programs of the stage `attend`: what they keep, and what they choose in a layer.

A program runs for each row by itself, for contexts differ in their sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from pie_inference.device import one_of_each
from pie_inference.sampling import device_operations as operations
from pie_inference.sampling.device_programs import given_values
from pie_inference.sampling.executable import Action, Executable, whole_numbers
from pie_py.device_programs.bound import ATTEND_VERSIONS, Bound
from pie_py.device_programs.language import HEADS, PAGES, SIZES, TOKENS, Kind
from pie_py.device_programs.program import GIVEN, Node, Program, read_program, sizes_of

Lens = Callable[[torch.Tensor], torch.Tensor]  # [n, hidden] to logits [n, vocabulary], float32
_KNOWN = 64  # programs that are kept ready
_OF_LAYER = frozenset({"weights", "scores", "layer", "state", "residual", "lens"})
_FEW = 1024  # elements of which all are sorted for the largest


class AttendExecutable(Executable):
    """A program, ready to run for one row in one layer."""

    def __init__(self, program: Program, device: torch.device) -> None:
        """Runs nothing yet; constants are on the device."""
        super().__init__(program, 0, device)
        varying: set[int] = set()  # nodes that differ between layers
        for i, node in enumerate(program.nodes):
            if node.operation in _OF_LAYER or not varying.isdisjoint(node.operands):
                varying.add(i)
        self._same = [action for action in self._actions if action[0] not in varying]
        self._own_actions = [action for action in self._actions if action[0] in varying]

    def same(self, rows: Any) -> list[Any]:
        """The values of nodes that are the same in all layers, in their places."""
        values: list[Any] = [None] * len(self.program.nodes)
        for number, action, _ in self._same:
            values[number] = action(rows, values)
        return values

    def keeps_all(self, same: list[Any]) -> bool:
        """True if all is kept whatever a layer has: one side of an `or` is true in all layers."""
        waiting = {self.program.token}
        while waiting:  # from the last node on, so that each is looked at once
            number = max(waiting)
            waiting.remove(number)
            node = self.program.nodes[number]
            if same[number] is not None:
                if bool(same[number].all()):
                    return True
            elif node.operation == "or":
                waiting.update(node.operands)
        return False

    def evaluate_layer(self, rows: Any, same: list[Any]) -> list[Any]:
        """The values of nodes in a layer."""
        values = same.copy()
        for number, action, _ in self._own_actions:
            values[number] = action(rows, values)
        return values

    def _operands_of(self, node: Node) -> Sequence[int]:
        ranked = self._ranked_of(node)
        return super()._operands_of(node) if ranked is None else (ranked, node.operands[1])

    def _ranked_of(self, node: Node) -> int | None:
        """Of `x.sort().transpose()[place]` with one place the node `x`: not all is to be sorted."""
        nodes = self.program.nodes
        if node.operation != "gather" or nodes[node.operands[1]].type.shape:
            return None
        turned = nodes[node.operands[0]]
        if turned.operation != "transpose" or nodes[turned.operands[0]].operation != "sort":
            return None
        return nodes[turned.operands[0]].operands[0]

    def _action(self, node: Node) -> Action:
        """Values that depend on sizes of the context are made when those are known."""
        attributes, device = node.attributes, self._device
        if (ranked := self._ranked_of(node)) is not None:
            place = node.operands[1]
            return lambda rows, values: _of_rank(values[ranked], values[place])
        match node.operation:
            case "weights" | "scores" | "tokens" | "layer" | "residual" as name:
                return lambda rows, values: rows.of_layer(name)
            case "shared":
                operand = node.operands[0]
                return lambda rows, values: _shared(values[operand], rows.sharing)
            case "iota" if attributes[0] in SIZES:
                return lambda rows, values: whole_numbers(_sizes(rows)[attributes[0]], device)[None]
            case "reshape":
                operand = node.operands[0]
                return lambda rows, values: values[operand].reshape(
                    1, *sizes_of(attributes, _sizes(rows))
                )
            case "top":
                operand, count = node.operands[0], attributes[0]
                return lambda rows, values: _top(values[operand], count)
            case "scatter_max" if node.type.kind is Kind.BOOL:
                x, places, new = node.operands
                return lambda rows, values: _marked(values[x], values[places], values[new])
        return super()._action(node)


def _sizes(rows: Any) -> dict[int, int]:
    found: dict[int, int] = rows.sizes
    return found


def _shared(x: torch.Tensor, sharing: int) -> torch.Tensor:
    """The largest of `sharing` consecutive rows `[1, heads, n]`, for each of them."""
    groups = x.reshape(1, -1, sharing, x.shape[-1]).amax(2)
    return groups.repeat_interleave(sharing, 1)


def _of_rank(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Of each row `[1, rows, n]` what would be at a place `[1]` if it were sorted, `[1, rows]`."""
    if x.device.type != "cpu":
        return operations.gather(operations.ordered(x).transpose(1, 2), place)
    at = int(place)
    if not 0 <= at < x.shape[-1]:
        return x.new_zeros(x.shape[:-1])
    return torch.from_numpy(np.partition(x.numpy(), at, axis=-1)[..., at])


def _top(x: torch.Tensor, count: int) -> torch.Tensor:
    """Places of the largest `[1, count]`; -1 if there are not so many."""
    size = x.shape[-1]
    if size > _FEW or not x.dtype.is_floating_point:
        found = operations.top(x, min(count, size))
    else:
        ordered = x.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        found = ordered.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return found if count <= size else torch.nn.functional.pad(found, (0, count - size), value=-1)


def _marked(x: torch.Tensor, places: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`scatter_max` of bools: what is true already, or a place with a true value."""
    size = x.shape[-1]
    marked = torch.zeros((1, size + 1), dtype=torch.bool, device=x.device)
    # What is false, or outside, goes behind the end.
    index = places.masked_fill((places < 0) | (places >= size) | ~new, size)
    return marked.scatter_(1, index, True)[:, :size] | x


@lru_cache(_KNOWN)
def _executable(text: str, device: torch.device) -> AttendExecutable:
    return AttendExecutable(read_program(text), device)


@dataclass(slots=True)
class Version:
    """The state of each layer after a step."""

    step: int
    # After weights: bool [tokens], or of key heads [kv_heads, tokens].
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)  # by name


class Attender:
    """A sampler's program, and what there was after its newest steps."""

    def __init__(self, bound: Bound, device: torch.device) -> None:
        program = bound.program
        self.device = device
        self.executable = _executable(program.text, device)
        self.versions: deque[Version] = deque(maxlen=ATTEND_VERSIONS)
        self.prompt: object | None = None  # what a prompt's next part needs of those before
        sizes = [(1, *sizes_of(of.shape, GIVEN)) for _, of in program.names]
        self.given = list(given_values(program, bound.values, sizes, device))

    @property
    def in_layers(self) -> bool:
        """True if it is one in the layers, not of what these read."""
        return bool(self.executable.program.layers)

    @property
    def observes_prompt(self) -> bool:
        """True if it takes the weights, so that it observes prompts."""
        return self.executable.program.window is not None

    def value(self, step: int, number: int) -> torch.Tensor:
        """The value `[1, *sizes]` of a name of one in the layers, after so many choices."""
        newest = next((each for each in reversed(self.versions) if each.step <= step), None)
        return ({} if newest is None else newest.values[0]).get(number, self.given[number])

    def before(self, step: int) -> Version:
        """The newest version of the steps before one; those behind it are undone."""
        if step:
            self.prompt = None
        while self.versions and self.versions[-1].step >= step:
            self.versions.pop()
        return self.versions[-1] if self.versions else Version(-1)


class AttendStep:
    """A program in a forward: layer by layer, what is read and what comes of it."""

    def __init__(
        self,
        attender: Attender,
        step: int,
        heads: tuple[int, int],
        pages: int,
        tokens: int,
        last: int,
    ) -> None:
        """Begins a forward of a context of so many pages and tokens, up to its last layer; heads
        are those of queries and those of keys.
        """
        self.sharing, self._kv_heads = heads[0] // heads[1], heads[1]
        self._attender, self._executable = attender, attender.executable
        self._before = attender.before(step)
        self._after = Version(step)
        self._device = attender.executable._device
        self._last = last
        self._step = step
        self._layer = 0
        self._given: torch.Tensor | None = None
        self._same: list[Any] | None = None
        self._is_settled = False  # it reads what was left after the steps before
        self.sizes = {HEADS: heads[0], TOKENS: tokens, PAGES: pages}
        program = attender.executable.program
        self.window = program.window
        self.wants_weights = program.window is not None
        self.wants_scores = program.keeps_pages
        # What later parts of a prompt need, which is kept if this one comes to its end.
        self.so_far = attender.prompt
        if self.wants_weights and step and not program.next:
            # Without state, and if nothing else goes, it need not be told (SnapKV).
            self._same = self._executable.same(self)
            self._is_settled = self._executable.keeps_all(self._same)
            self.wants_weights = not self._is_settled

    # What its program is given

    @property
    def steps(self) -> torch.Tensor:
        """How many tokens were chosen before, int64 `[1]`."""
        return torch.tensor([self._step], device=self._device)

    def of_layer(self, name: str) -> torch.Tensor:
        """The result of an operation of the stage alone, `[1, *sizes]`."""
        if name in ("weights", "scores"):
            assert self._given is not None
            return self._given
        number = self._layer if name == "layer" else self.sizes[TOKENS]
        return whole_numbers(number + 1, self._device)[number:]

    def state(self, number: int) -> torch.Tensor:
        """The value of a name in this layer `[1, *sizes]`: new tokens have what it was given."""
        given = self._attender.given[number]
        of = self._executable.program.names[number].type
        found = self._before.values.get(self._layer, {}).get(number)
        if not of.shape or of.shape[-1] != TOKENS:
            return given if found is None else found
        if found is None and len(of.shape) > 1:
            found = given.expand(1, self.sizes[HEADS], 1)
        return _of_size(given if found is None else found, given, self.sizes)

    # What comes of it

    def keep(self, layer: int, scores: torch.Tensor | None) -> torch.Tensor:
        """The choice of a layer, perhaps by head: tokens, or by scores `[heads, pages]` pages."""
        return self.left(layer) if self._is_settled else self._run(layer, scores)

    def left(self, layer: int) -> torch.Tensor:
        """Which tokens a layer still reads after the weights of the steps before: bool `[tokens]`,
        or of key heads `[kv_heads, tokens]`.
        """
        true = torch.ones(1, dtype=torch.bool, device=self._device)
        return _of_size(self._before.kept.get(layer, true), true, self.sizes)

    def note(self, layer: int, weights: torch.Tensor, read: torch.Tensor) -> None:
        """Takes a layer's weights `[heads, tokens]`, and which tokens were read."""
        kept = self._run(layer, weights)
        if kept.ndim == 2:
            kept = one_of_each(kept, self._kv_heads)
        self._after.kept[layer] = kept & read
        self._end(layer)

    def _run(self, layer: int, given: torch.Tensor | None) -> torch.Tensor:
        self._layer = layer
        self._given = None if given is None else given[None]
        program = self._executable.program
        if self._same is None:
            self._same = self._executable.same(self)
        values = self._executable.evaluate_layer(self, self._same)
        if program.next:
            self._after.values[layer] = {name: values[node] for name, node in program.next.items()}
        found: torch.Tensor = values[program.token][0]
        if not self.wants_weights:
            self._end(layer)
        return found

    def _end(self, layer: int) -> None:
        """After the last layer the step has taken place."""
        if layer == self._last and (self._after.kept or self._after.values):
            self._attender.versions.append(self._after)
            self._attender.prompt = self.so_far


def _of_size(found: torch.Tensor, given: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """A value `[..., tokens]` for as many tokens as there are now: longer, or cut off."""
    lacking = sizes[TOKENS] - found.shape[-1]
    if lacking <= 0:
        return found[..., : sizes[TOKENS]]
    return torch.cat((found, given.expand(*found.shape[:-1], lacking)), -1)


class AttendPrograms:
    """Which samplers of a pool have programs of the stage `attend`, and what those keep."""

    def __init__(self, device: torch.device, lens: Lens | None = None) -> None:
        """None has one yet. Without a lens none is of those in the layers."""
        self._device, self.lens = device, lens
        self.of: dict[int, Attender] = {}  # by sampler

    def set(self, samplers: Sequence[int], programs: Sequence[Bound | None]) -> None:
        """Gives samplers their programs; those that they had are forgotten."""
        self.drop(samplers)
        for sampler, bound in zip(samplers, programs, strict=True):
            if bound is not None:
                self.of[sampler] = Attender(bound, self._device)

    def drop(self, samplers: Sequence[int]) -> None:
        """Forgets the programs of samplers; one without is none."""
        for sampler in samplers:
            self.of.pop(sampler, None)

    def state(self, sampler: int, step: int) -> list[torch.Tensor]:
        """The values that change of a sampler's program in the layers, after so many choices."""
        found = self.of.get(sampler)
        if found is None or not found.in_layers:
            return []
        return [found.value(step, i)[0] for i in found.executable.program.next]
