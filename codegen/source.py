"""Helpers of the generators: the contract, the line that says "generated", names, formatting."""

from __future__ import annotations

import inspect
import re
import subprocess
from functools import cache
from pathlib import Path

from pie_py.build.wit import Interface, Package, Type, parse
from pie_py.config.processes import python_command

COMMAND = "python -m codegen"
REPOSITORY = Path(__file__).resolve().parents[1]
CONTRACT = REPOSITORY / "sdk" / "wit" / "inferlet.wit"


class GenerateError(RuntimeError):
    """The contract uses something that a generator does not know, or a formatter failed."""


@cache
def contract() -> Package:
    """The contract, as `sdk/wit/inferlet.wit` has it."""
    return parse(CONTRACT.read_text(encoding="utf-8"))


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


def format_python(text: str) -> str:
    """Formats Python code as `ruff check --fix` and `ruff format` do, with the repository's
    settings.

    Raises:
        GenerateError: if the code cannot be parsed.
    """
    # Ruff finds its settings from the file's name; no file of this name has to exist.
    name = str(Path(__file__).with_name("generated.py"))
    for arguments in (["check", "--fix", "--quiet", "--exit-zero"], ["format"]):
        command = python_command("-m", "ruff", *arguments, "--stdin-filename", name, "-")
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GenerateError(f"ruff refuses the generated code: {done.stderr}")
        text = done.stdout
    return text
