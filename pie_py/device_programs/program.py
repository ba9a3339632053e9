"""A device program as it is sent: read, checked, and what it costs.

Its canonical text is JSON without spaces, with keys in this order:

    {"state":[[name, kind, sizes], ...],"nodes":[[operation, operands, attributes], ...],
     "token":node,"next":[[state, node], ...]}

A program of the stage `attend` has "keep" in the place of "token": the node whose value tells which
tokens or pages are kept, or, of a program in the layers, what the layer is given.

Operands are numbers of earlier nodes. Nodes come in the order in which the token and then the next
state need them, none twice and none that is not needed, so the same function has the same text in
every language, and is known by its hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from pie_py.device_programs.language import (
    ATTEND,
    HEADS,
    MOST_AXES,
    OPERATIONS,
    PAGES,
    SIZES,
    TOKENS,
    VOCABULARY,
    Kind,
    Mistake,
    Type,
    check_stage,
    result_type,
)

MOST_TEXT = 1 << 16  # characters
MOST_NODES = 1024
MOST_NAMES = 64  # of state
MOST_NAME = 64  # characters
MOST_STATE = 1024  # elements that change from step to step, beside two for each token
MOST_GIVEN = 1 << 18  # elements that do not
MOST_WIDE = 1 << 16  # elements of a value, or four times the vocabulary
PER_FOUND = 130  # additions, for each element that `top` finds, and sorts
MOST_ATTEND_COST = 128  # additions in a layer for each token and head
MOST_LAYER_COST = 1 << 28  # additions of a program in the layers, in all of them together
MOST_OF_HIDDEN = 16  # elements of its state that change, for each of the hidden size
MOST_COST = 1280  # additions for each token of the vocabulary; all rules of `Sampler` fit
BYTES = {Kind.FLOAT: 4, Kind.INT: 8, Kind.BOOL: 1}  # of an element that was given
_REMEMBERED = 256  # programs that are not read again
LEAST_COST = 1 << 22  # additions that are left aside: those of short values
# Of operations that take as long as several however short their values are: as how many
# (a closed experiment, `prices` in docs/benchmarks.md, measured them).
CALLS = {
    **dict.fromkeys(("counts", "given", "floordiv", "gather", "argmax", "argsort", "matvec"), 3),
    "sigmoid": 3,
    **dict.fromkeys(("mod", "shr", "scatter_add", "scatter_max"), 5),
    **dict.fromkeys(("hash", "random", "exponential", "top", "nucleus"), 8),
    **dict.fromkeys(("newest", "nucleus_by"), 14),
    "repeats": 40,
}

# Sizes for which the cost of a program of the stage `attend` is told, and what a value of one that
# it was given has: axes of heads and tokens are given as one number, for all of them.
NOMINAL = {HEADS: 32, TOKENS: 4096, PAGES: 256}
GIVEN = {HEADS: 1, TOKENS: 1}


class ProgramFault(ValueError):
    """A text that is no program, or one that may not run."""


class Node(NamedTuple):
    """An operation on earlier nodes."""

    operation: str
    operands: tuple[int, ...]
    attributes: tuple[int, ...]
    type: Type


class Name(NamedTuple):
    """Something that a program was given by name, and its type."""

    name: str
    type: Type


@dataclass(frozen=True)
class Program:
    """A program that has been checked.

    Attributes:
        text: canonical.
        names: what it was given by name, in the order of the names.
        nodes: each behind its operands.
        token: the node whose value is the token, or in the stage `attend` what is kept.
        next: numbers of names, and the nodes that give their values for the next step.
        attends: whether it is one of the stage `attend`, not of `sample`.
    """

    text: str
    names: tuple[Name, ...]
    nodes: tuple[Node, ...]
    token: int
    next: dict[int, int]
    attends: bool = False

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def hash(self) -> str:
        """By which equal programs are known."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def uses(self, *operations: str) -> bool:
        """True if one of some operations is in it."""
        return any(node.operation in operations for node in self.nodes)

    @cached_property
    def calls(self) -> int:
        """Its operations, as many as they take as long as."""
        return sum(CALLS.get(node.operation, 1) for node in self.nodes)

    @property
    def beside(self) -> int:
        """How many contexts beside its own it reads the logits of."""
        numbers = [node.attributes[0] for node in self.nodes if node.operation == "beside"]
        return max(numbers, default=-1) + 1

    def lens_sizes(self) -> set[int]:
        """Sizes of what it looks at through the last norm and the head."""
        lenses = [node for node in self.nodes if node.operation == "lens"]
        return {self.nodes[node.operands[0]].type.shape[0] for node in lenses}

    @property
    def keeps_pages(self) -> bool:
        """True for one of the stage `attend` that returns pages, not tokens."""
        return self.nodes[self.token].type.shape[-1:] == (PAGES,)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Of a program in the layers those before which it runs; else none."""
        return next(
            (each.attributes[2:] for each in self.nodes if each.operation == "residual"), ()
        )

    @cached_property
    def window(self) -> int | None:
        """How many of a prompt's last inputs it is told the weights of, together: 0 for all of
        them, None if it takes no weights. In the layers: as many of a prompt's inputs it runs for.
        """
        for node in self.nodes:
            if node.operation == "residual":
                return (None, 0, 1)[node.attributes[1]]
        windows = [node.attributes[0] for node in self.nodes if node.operation == "weights"]
        return windows[0] if windows else None

    def given_sizes(self, vocabulary: int) -> Mapping[int, int]:
        """Sizes of what it is given by name."""
        return GIVEN if self.attends else {VOCABULARY: vocabulary}

    def given_bytes(self, vocabulary: int, versions: int = 1) -> int:
        """Of the values of its names, those that change in so many versions."""
        sizes = self.given_sizes(vocabulary)
        return sum(
            BYTES[of.kind] * elements(of.shape, sizes) * (versions if i in self.next else 1)
            for i, (_, of) in enumerate(self.names)
        )

    def state_bytes(self, tokens: int, versions: int, heads: int, kv_heads: int) -> int:
        """Of what one of the stage `attend` keeps in a layer, of so many tokens at most: all that
        changes, and after weights which tokens are kept, perhaps by key head.
        """
        sizes = {TOKENS: tokens, HEADS: heads}
        changing = (self.names[i].type for i in self.next)
        found = sum(BYTES[of.kind] * elements(of.shape, sizes) for of in changing)
        by_head = len(self.nodes[self.token].type.shape) > 1
        kept = tokens * (kv_heads if by_head else 1) * self.uses("weights")
        return versions * (found + kept)

    def prompt_bytes(self, tokens: int, heads: int, head_dim: int) -> int:
        """Of what is kept in a layer until a prompt is over, of so many tokens at most: sums of all
        its inputs' weights, or the queries of the last ones.
        """
        if self.window is None or self.layers:
            return 0
        return BYTES[Kind.FLOAT] * heads * (self.window * head_dim or tokens)

    def cost(self, vocabulary: int, context: Mapping[int, int] = NOMINAL) -> float:
        """Of a step of one row, in additions, with so many tokens; of one of the stage `attend` in
        one layer, with the sizes of a context.
        """
        sizes = context if self.attends else {VOCABULARY: vocabulary}
        written = sum(elements(self.nodes[node].type.shape, sizes) for node in self.next.values())
        total = OPERATIONS["state"].cost * written
        return total + sum(self.cost_of(node, sizes) for node in self.nodes)

    def cost_of(self, node: Node, sizes: Mapping[int, int]) -> float:
        """Of one node, in additions, without what its call takes."""
        operands = [self.nodes[i].type for i in node.operands]
        widest = max(elements(of.shape, sizes) for of in (node.type, *operands))
        name = node.operation
        if name in ("top", "sort") and operands[0].kind is Kind.INT:
            name = "argsort"  # whole numbers are all sorted, as wide ones
        if name == "lens":
            widest *= elements(operands[0].shape, sizes)
        cost = (OPERATIONS.get(name) or ATTEND[name]).cost * widest
        return cost + PER_FOUND * node.attributes[0] if name == "top" else cost

    def check_fits(self, vocabulary: int) -> None:
        """Refuses what may not run with a model of so many tokens.

        Raises:
            ProgramFault: naming the limit, and the node's operation.
        """
        sizes = NOMINAL if self.attends else {VOCABULARY: vocabulary}
        if self.attends:
            vocabulary = sizes[HEADS] * sizes[TOKENS]  # what is bounded for each
        widest = max(MOST_WIDE, 4 * vocabulary)
        for i, node in enumerate(self.nodes):
            size = elements(node.type.shape, sizes)
            if size > widest:
                raise ProgramFault(
                    f"node {i}: {node.operation} gives {node.type}, {size} elements;"
                    f" {widest} at most"
                )
            if sum(axis in (TOKENS, PAGES) for axis in node.type.shape) > 1:
                raise ProgramFault(
                    f"node {i}: {node.operation} gives {node.type}, whose size grows with the"
                    " square of the context"
                )
            if node.operation in ("slice", "top"):
                self._check_part(i, vocabulary)
        if self.calls > MOST_NODES:
            raise ProgramFault(
                f"operations that take as long as {self.calls}; {MOST_NODES} at most"
            )
        per = MOST_ATTEND_COST if self.attends else MOST_COST
        cost, most = self.cost(vocabulary), LEAST_COST + per * vocabulary
        if self.uses("lens"):
            most += MOST_LAYER_COST
        if self.layers:
            cost, most = cost * len(self.layers), MOST_LAYER_COST
        if cost > most:
            what, of = "a step", f"{vocabulary} tokens"
            if self.layers:
                what, of = "a step in the layers", f"{len(self.layers)} of them"
            elif self.attends:
                what, of = "a layer", f"{NOMINAL[HEADS]} heads and {NOMINAL[TOKENS]} tokens"
            raise ProgramFault(f"{what} costs {cost:.3g} additions; {most:.3g} at most, with {of}")
        most = MOST_STATE if self.attends else MOST_STATE + 2 * vocabulary
        if self.layers:
            most += MOST_OF_HIDDEN * elements(self.nodes[self.token].type.shape, sizes)
        for changing, limit in ((True, most), (False, MOST_GIVEN)):
            counts = [
                elements(name.type.shape, GIVEN if self.attends else sizes)
                for i, name in enumerate(self.names)
                if (i in self.next) is changing
            ]
            if sum(counts) > limit:
                what = "change from step to step" if changing else "were given"
                raise ProgramFault(f"{sum(counts)} elements that {what}; {limit} at most")

    def _check_part(self, number: int, vocabulary: int) -> None:
        node = self.nodes[number]
        of = self.nodes[node.operands[0]].type.shape
        if of[-1] == VOCABULARY and node.attributes[-1] > vocabulary:
            raise ProgramFault(
                f"node {number}: {node.operation} {node.attributes[-1]} of {vocabulary} tokens"
            )


def sizes_of(shape: tuple[int, ...], known: Mapping[int, int]) -> tuple[int, ...]:
    """Sizes, where those that were not are known."""
    return tuple(known.get(size, size) for size in shape)


def elements(shape: tuple[int, ...], known: Mapping[int, int]) -> int:
    """How many elements a value has."""
    return math.prod(sizes_of(shape, known))


@lru_cache(_REMEMBERED)
def program_for(text: str, vocabulary: int) -> Program:
    """A program that may run with a model of so many tokens; of a text it is read once.

    Raises:
        ProgramFault: as `read_program` and `Program.check_fits`.
    """
    program = read_program(text)
    program.check_fits(vocabulary)
    return program


def read_program(text: str) -> Program:
    """Reads a canonical text.

    Raises:
        ProgramFault: what is wrong, with the number of the node.
    """
    if len(text) > MOST_TEXT:
        raise ProgramFault(f"{len(text)} characters; {MOST_TEXT} at most")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramFault(f"no JSON: {error}") from None
    result = "keep" if isinstance(given, dict) and "keep" in given else "token"
    if not isinstance(given, dict) or list(given) != ["state", "nodes", result, "next"]:
        raise ProgramFault(f"not an object of state, nodes, {result} and next")
    if json.dumps(given, separators=(",", ":"), ensure_ascii=False) != text:
        raise ProgramFault("not in canonical form")
    names = _names(given["state"])
    nodes = _nodes(given["nodes"], names)
    token = _index(given[result], len(nodes), result)
    attends = result == "keep"
    _check_stage(names, nodes, token, attends=attends)
    following = _next(given["next"], names, nodes)
    if len({node[:3] for node in nodes}) < len(nodes):
        raise ProgramFault("a node stands there twice")
    found = needed([token, *following.values()], [node.operands for node in nodes])
    if list(found) != list(range(len(nodes))):
        raise ProgramFault("nodes that are not needed, or not in the order in which they are")
    return Program(text, names, nodes, token, following, attends)


def _check_stage(
    names: tuple[Name, ...], nodes: tuple[Node, ...], result: int, *, attends: bool
) -> None:
    """Refuses what the other stage is given, and another result."""
    of = nodes[result].type
    for node in nodes:
        try:
            check_stage(node.operation, node.type, attends=attends)
        except Mistake as error:
            raise ProgramFault(str(error)) from None
    if not attends:
        if of != Type(Kind.INT):
            raise ProgramFault(f"the token is {of}, not int []")
        return
    used = {node.operation for node in nodes}
    if "residual" in used:
        _check_layers(names, nodes, of)
        return
    if "lens" in used:
        raise ProgramFault("lens: of a program in the layers")
    if {"weights", "scores"} <= used:
        raise ProgramFault("weights and scores: a program takes one of them")
    if sum(node.operation == "weights" for node in nodes) > 1:
        raise ProgramFault("weights of two windows: a program takes one")
    axes = kept_axes(used)
    if of.kind is not Kind.BOOL or of.shape not in [
        shape for axis in axes for shape in ((axis,), (HEADS, axis))
    ]:
        raise ProgramFault(f"what is kept is {of}, not {Type(Kind.BOOL, axes[:1])}, or by head")
    for name, kind in names:
        fits = kind.shape in ((), (TOKENS,), (HEADS, TOKENS))
        if not fits and (len(kind.shape) > 1 or kind.shape[0] in SIZES):
            raise ProgramFault(
                f"{name} is {kind}: one axis at most, of tokens or of a known size, or heads and"
                " tokens"
            )


def _check_layers(names: tuple[Name, ...], nodes: tuple[Node, ...], of: Type) -> None:
    """Refuses what a program in the layers does not have, and another result."""
    given = [node for node in nodes if node.operation == "residual"]
    if len(given) > 1 or of != given[0].type:
        raise ProgramFault(f"what a layer is given is {of}, not {given[0].type}")
    for node in nodes:
        foreign = node.operation in ("weights", "scores", "shared", "tokens")
        if foreign or any(size in SIZES for size in node.type.shape):
            raise ProgramFault(f"{node.operation} of {node.type}: a program in the layers has none")
    for name, kind in names:
        if any(size in SIZES for size in kind.shape):
            raise ProgramFault(f"{name} is {kind}: no size of the context in the layers")


def kept_axes(operations: Set[str]) -> tuple[int, ...]:
    """The choice of a program of the stage `attend` with such operations: some of the pages that it
    was given scores of, of the tokens that it was given weights of, or of either.
    """
    if "scores" in operations:
        return (PAGES,)
    return (TOKENS,) if "weights" in operations else (TOKENS, PAGES)


def _names(given: Any) -> tuple[Name, ...]:
    if not isinstance(given, list) or len(given) > MOST_NAMES:
        raise ProgramFault(f"state is no list of {MOST_NAMES} names at most")
    found = []
    for one in given:
        match one:
            case [str(name), int(kind), [*sizes]] if name.isidentifier() and len(name) <= MOST_NAME:
                if not isinstance(kind, bool) and kind in tuple(Kind) and len(sizes) <= MOST_AXES:
                    shape = tuple(_whole(size) for size in sizes)
                    if all(size in SIZES or size > 0 for size in shape):
                        found.append(Name(name, Type(Kind(kind), shape)))
                        continue
        raise ProgramFault(f"{one!r:.80} is no name with a kind and sizes")
    names = [one.name for one in found]
    if names != sorted(set(names)):
        raise ProgramFault("names of state are not in order, or one stands there twice")
    return tuple(found)


def _nodes(given: Any, names: tuple[Name, ...]) -> tuple[Node, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_NODES:
        raise ProgramFault(f"nodes are no list of 1 to {MOST_NODES}")
    found: list[Node] = []
    for i, one in enumerate(given):
        match one:
            case [str(operation), [*operands], [*attributes]]:
                before = tuple(_index(each, i, f"node {i}") for each in operands)
                numbers = tuple(_whole(each) for each in attributes)
            case _:
                raise ProgramFault(f"node {i}: {one!r:.80} is no operation on nodes")
        if operation == "state" and not before and len(numbers) == 1:
            of = names[_index(numbers[0], len(names), f"node {i}: state")].type
        else:
            try:
                of = _result_type(operation, tuple(found[each].type for each in before), numbers)
            except Mistake as error:
                raise ProgramFault(f"node {i}: {error}") from None
        found.append(Node(operation, before, numbers, of))
    return tuple(found)


@lru_cache(1 << 12)
def _result_type(name: str, operands: Sequence[Type], attributes: tuple[int, ...]) -> Type:
    return result_type(name, operands, attributes)


def _next(given: Any, names: tuple[Name, ...], nodes: tuple[Node, ...]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in given if isinstance(given, list) else [given]:
        match one:
            case [number, node]:
                place = _index(number, len(names), "next")
                value = nodes[_index(node, len(nodes), "next")].type
            case _:
                raise ProgramFault(f"next: {one!r:.80} is no name and node")
        if value != names[place].type:
            raise ProgramFault(f"{names[place].name} is {names[place].type}, and becomes {value}")
        found[place] = node
    if list(found) != sorted(found) or len(found) != len(given):
        raise ProgramFault("next is not in the order of names, or one stands there twice")
    return found


def needed(roots: Iterable[int], operands: Sequence[Sequence[int]]) -> dict[int, int]:
    """Some nodes and those that they need, operands first: new numbers by their own. A stack, for
    programs are deeper than Python's.
    """
    found: dict[int, int] = {}
    for root in roots:
        waiting = [(root, False)]
        while waiting:
            number, is_ready = waiting.pop()
            if number in found:
                continue
            if is_ready:
                found[number] = len(found)
            else:
                waiting.append((number, True))
                waiting += [(one, False) for one in reversed(operands[number])]
    return found


def _whole(given: Any) -> int:
    if type(given) is not int or not -(2**53) <= given <= 2**53:
        raise ProgramFault(f"{given!r:.40} is no whole number")
    return given


def _index(given: Any, size: int, what: str) -> int:
    number = _whole(given)
    if not 0 <= number < size:
        raise ProgramFault(f"{what}: {number} is none of {size} before")
    return number
