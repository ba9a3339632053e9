"""A recording of a program, by tensors that have kinds and sizes and no values."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pie_py.device_programs.language import (
    SIZES,
    VOCABULARY,
    Kind,
    Mistake,
    Type,
    check_stage,
    result_type,
)
from pie_py.device_programs.program import MOST_NODES, needed

_NODE = re.compile(r"\bnode (\d+)\b")
_MADE_AT = ", made at "
_MOST_RECORDED = 4 * MOST_NODES  # operations, those that nothing needs among them


class Tensor:
    """A value of a program while it is read: an operation, its kind and its sizes."""

    __slots__ = ("number", "type")

    def __init__(self, number: int, of: Type) -> None:
        self.number = number
        self.type = of

    def __repr__(self) -> str:
        return f"<{self.type}>"

    @property
    def size(self) -> int:
        """Elements along the first axis.

        Raises:
            Mistake: it has no axis, or one whose size is known only where it runs.
        """
        shape = self.type.shape
        if not shape or shape[0] in SIZES:
            raise Mistake(f"{self} has no length that is known")
        return shape[0]


class Size(int):
    """A size that is known where the program runs: until then it is only compared and named."""

    def __repr__(self) -> str:
        return f"the size `{SIZES[self]}`"


def check_known(*values: Any) -> None:
    """Raises `Mistake`: one of some values is a size that is not known yet."""
    for one in values:
        if isinstance(one, Size):
            raise Mistake(f"{one!r} is no number: it is known only where the program runs")


class Recorded(NamedTuple):
    """A program that was read.

    Attributes:
        text: canonical, see `program.py`.
        places: of each node, the place in the source that made it, and the expression there.
    """

    text: str
    places: tuple[str, ...]

    @property
    def operations(self) -> set[str]:
        """Names of what it does."""
        return {node[0] for node in json.loads(self.text)["nodes"]}

    def explained(self, message: str) -> str:
        """A message that names a node of the program, with the place that made it."""
        found = _NODE.search(message)
        if found is None or int(found[1]) >= len(self.places) or _MADE_AT in message:
            return message
        return f"{message}{_MADE_AT}{self.places[int(found[1])]}"


class Recording:
    """The operations of one program, in the order in which they were met.

    Attributes:
        place: of what is read now, in the source.
        expression: that, as it stands there; empty if it is none.
    """

    def __init__(self, names: Mapping[str, Type], *, attends: bool) -> None:
        """A program of the stage `attend` or, without, `sample`, that is given some names."""
        self.attends = attends
        self.names = {name: (i, names[name]) for i, name in enumerate(sorted(names))}
        self.changed: dict[str, Tensor] = {}  # state that was assigned
        self.place = self.expression = ""
        self.vocabulary = 1 if attends else VOCABULARY  # in the layers: tokens of the model
        self._nodes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        self._places: list[str] = []
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def add(self, operation: str, *operands: Any, attributes: Sequence[int] = ()) -> Tensor:
        """The result of an operation; a number among the operands is of the first tensor's kind.

        Raises:
            Mistake: the operands do not go with it.
        """
        like = next((one.type.kind for one in operands if isinstance(one, Tensor)), None)
        tensors = [self.tensor(one, like) for one in operands]
        if wrong := [one for one in attributes if not isinstance(one, int)]:
            raise Mistake(f"{operation} takes a whole number that is known here, not {wrong[0]!r}")
        key = (operation, tuple(one.number for one in tensors), tuple(attributes))
        found = self._known.get(key)
        if found is None:
            of = result_type(operation, [one.type for one in tensors], key[2])
            check_stage(operation, of, attends=self.attends)
            found = self._put(key, of)
        return found

    def tensor(self, value: Any, like: Kind | None = None) -> Tensor:
        """A number as a constant: an int beside floats is one of them.

        Raises:
            Mistake: it is no number, or none that float32 has.
        """
        if isinstance(value, Tensor):
            return value
        check_known(value)
        if isinstance(value, bool):
            return self.add("constant", attributes=(Kind.BOOL, int(value)))
        if isinstance(value, int) and like is not Kind.FLOAT:
            return self.add("constant", attributes=(Kind.INT, value))
        if isinstance(value, int | float):
            try:
                (bits,) = struct.unpack("<I", struct.pack("<f", value))
            except OverflowError:
                raise Mistake(f"{value} is too large for float32") from None
            return self.add("constant", attributes=(Kind.FLOAT, bits))
        raise Mistake(f"{value!r:.60} is neither a tensor nor a number")

    def read(self, name: str) -> Tensor:
        """The value of a name: that of this token, or the one assigned to it before.

        Raises:
            Mistake: the program was not given it.
        """
        if name in self.changed:
            return self.changed[name]
        if name not in self.names:
            given = ", ".join(self.names) or "nothing"
            raise Mistake(f"there is no state.{name}; the program was given {given}")
        return self._given(name)

    def assign(self, name: str, value: Any) -> None:
        """The value of a name at the next token, of the same kind and sizes.

        Raises:
            Mistake: it is of another kind or size.
        """
        of = self.read(name).type
        found = self.tensor(value, of.kind)
        if found.type != of:
            raise Mistake(f"state.{name} is {of}, and becomes {found.type}")
        self.changed[name] = found

    def finish(self, result: Tensor) -> Recorded:
        """The recording, as far as the result and the next state need it."""
        following = {
            name: value
            for name, value in sorted(self.changed.items())
            if value.number != self._given(name).number
        }
        roots = [one.number for one in (result, *following.values())]
        order = needed(roots, [operands for _, operands, _ in self._nodes])
        given = {
            "state": [[name, of.kind, list(of.shape)] for name, (_, of) in self.names.items()],
            "nodes": [
                [operation, [order[i] for i in operands], list(attributes)]
                for operation, operands, attributes in (self._nodes[number] for number in order)
            ],
            "keep" if self.attends else "token": order[result.number],
            "next": [[self.names[name][0], order[of.number]] for name, of in following.items()],
        }
        text = json.dumps(given, separators=(",", ":"), ensure_ascii=False)
        return Recorded(text, tuple(self._places[number] for number in order))

    def _given(self, name: str) -> Tensor:
        number, of = self.names[name]
        key: tuple[str, tuple[int, ...], tuple[int, ...]] = ("state", (), (number,))
        return self._known.get(key) or self._put(key, of)

    def _put(self, key: tuple[str, tuple[int, ...], tuple[int, ...]], of: Type) -> Tensor:
        if len(self._nodes) >= _MOST_RECORDED:
            raise Mistake(f"more than {_MOST_RECORDED} operations; {MOST_NODES} may be needed")
        self._nodes.append(key)
        self._places.append(self.place + (f" by `{self.expression}`" if self.expression else ""))
        found = self._known[key] = Tensor(len(self._nodes) - 1, of)
        return found
