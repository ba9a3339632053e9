"""Types of host functions' parameters and results, as WIT names them."""

from __future__ import annotations

from dataclasses import dataclass


class Type:
    """A type of the component model."""

    @property
    def wit(self) -> str:
        """How WIT writes it; an enum without its name."""
        match self:
            case Scalar(name):
                return name
            case String():
                return "string"
            case Bytes():
                return "list<u8>"
            case List(element) | Array(element):
                return f"list<{element.wit}>"
            case Enum(names):
                return f"enum {{ {', '.join(names)} }}"
            case Tuple(elements):
                return f"tuple<{', '.join(element.wit for element in elements)}>"
        raise TypeError(f"{self!r} is no type of the contract")


@dataclass(frozen=True)
class Scalar(Type):
    """A number or a boolean, by its name. Python: int, float or bool."""

    name: str


@dataclass(frozen=True)
class String(Type):
    """Text. Python: str."""


@dataclass(frozen=True)
class Bytes(Type):
    """`list<u8>`. Python: bytes in, any bytes-like object out."""


@dataclass(frozen=True)
class List(Type):
    """A list. Python: list in; list, or a NumPy array of the element's dtype, out."""

    element: Type


@dataclass(frozen=True)
class Array(Type):
    """A list of numbers. Python: one-dimensional NumPy array of the element's dtype, in and out."""

    element: Scalar


@dataclass(frozen=True)
class Enum(Type):
    """One of several names. Python: str."""

    names: tuple[str, ...]


@dataclass(frozen=True, init=False)
class Tuple(Type):
    """Several values. Python: tuple."""

    elements: tuple[Type, ...]

    def __init__(self, *elements: Type) -> None:
        object.__setattr__(self, "elements", elements)


BOOL = Scalar("bool")
U8 = Scalar("u8")
S32 = Scalar("s32")
U32 = Scalar("u32")
U64 = Scalar("u64")
F32 = Scalar("f32")
F64 = Scalar("f64")
STRING = String()
U8_LIST = Bytes()
U32_LIST = List(U32)
U32_ARRAY = Array(U32)
STRING_LIST = List(STRING)


def signature(params: tuple[Type, ...], result: Type | None, *, fallible: bool) -> str:
    """A function's type as WIT writes it, without the parameters' names."""
    returns = "" if result is None else f" -> {result.wit}"
    if fallible:
        returns = f" -> result<{'_' if result is None else result.wit}, string>"
    return f"func({', '.join(param.wit for param in params)}){returns}"
