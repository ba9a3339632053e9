"""Values that a launch makes quickly."""

from __future__ import annotations

from typing import Any, ClassVar, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Value:
    """A class of named fields, equal if they are equal: a frozen dataclass for type checkers.

    A dataclass writes and compiles its methods when its module is imported, which takes 2 ms of
    each launch in Wasm. Here all classes share these methods; nothing stops an assignment.

    A field's default is that of all instances, so it must not be mutable.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Takes the fields in order or by name.

        Raises:
            TypeError: a field without a default is missing, or there is no such field.
        """
        fields = self.__dict__
        fields.update(zip(self._fields, values, strict=False), **named)
        if named or len(values) != len(self._fields):
            self._check(len(values), named)

    def replaced(self, **named: Any) -> Self:
        """The same with other values of some fields."""
        return type(self)(**{**{field: getattr(self, field) for field in self._fields}, **named})

    def _check(self, count: int, named: dict[str, Any]) -> None:
        rest = self._fields[count:]
        name = type(self).__name__
        if count > len(self._fields) or not named.keys() <= set(rest):
            raise TypeError(f"{name} takes {self._fields}: a value is left over")
        for field in rest:
            if field not in named and not hasattr(type(self), field):
                raise TypeError(f"{name} needs a value for {field}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field) == getattr(other, field) for field in self._fields)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, field) for field in self._fields)))

    def __repr__(self) -> str:
        shown = ", ".join(f"{field}={getattr(self, field)!r}" for field in self._fields)
        return f"{type(self).__name__}({shown})"
