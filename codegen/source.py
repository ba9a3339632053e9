"""Helpers of the generators: the contract, the line that says "generated", names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pie_py.build.wit import Interface, Type, contract

COMMAND = "python -m codegen"
REPOSITORY = Path(__file__).resolve().parents[1]


class GenerateError(RuntimeError):
    """The contract uses something that a generator does not know."""


def imported() -> dict[str, Interface]:
    """The interfaces that every program may import, in the order of the contract's world."""
    return {name: contract().interfaces[name] for name in contract().worlds["inferlet"].imports}


def notice(comment: str, source: str = "sdk/wit/inferlet.wit") -> str:
    """The first line of a generated file, as a comment that begins with `comment`."""
    return f"{comment} Generated from {source} by `{COMMAND}`; do not edit.\n"


def field_comments(of: type) -> dict[str, str]:
    """The comments on a class's fields, behind or above them."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(of).splitlines():
        field = re.match(r"    (\w+): [^#]*?(?:#\s*(.*))?$", line)
        if field:
            found[field[1]] = " ".join([*above, field[2] or ""]).strip().replace("|", "\\|")
            above = []
        elif comment := re.match(r"    # (.*)$", line):
            above.append(comment[1])
    return found


def snake(name: str) -> str:
    """A name of the contract as Python and Rust write it: `take-text` is `take_text`."""
    return name.replace("-", "_")


def pascal(name: str) -> str:
    """A name of the contract as Python and Rust write types: `log-level` is `LogLevel`."""
    return "".join(part.title() for part in name.split("-"))


def ok_type(result: Type | None) -> tuple[Type | None, bool]:
    """The type of a function's value, and whether the function can fail instead."""
    if result is not None and result.name == "result":
        return result.arguments[0], True
    return result, False
