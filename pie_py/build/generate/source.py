"""What the generators share: the contract, the line that says "generated", names, formatting."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from pie_py.build.wit import Package, Type, parse
from pie_py.config.shipped_files import shipped_folder

COMMAND = "python -m pie_py.build.generate"


class GenerateError(RuntimeError):
    """The contract uses something that a generator does not know, or a formatter failed."""


@cache
def contract() -> Package:
    """The contract, as `sdk/wit/inferlet.wit` has it."""
    return parse((shipped_folder("wit") / "inferlet.wit").read_text(encoding="utf-8"))


def notice(comment: str, source: str = "sdk/wit/inferlet.wit") -> str:
    """The first line of a generated file, for a language whose comments begin with `comment`."""
    return f"{comment} Generated from {source} by `{COMMAND}`; do not edit.\n"


def snake(name: str) -> str:
    """A name of the contract as Python and Rust write it: `take-text` is `take_text`."""
    return name.replace("-", "_")


def ok_type(result: Type | None) -> tuple[Type | None, bool]:
    """The type of a function's value, and whether the function can fail instead."""
    if result is not None and result.name == "result":
        return result.arguments[0], True
    return result, False


def format_python(text: str) -> str:
    """Formats Python code as `ruff format` does.

    Raises:
        GenerateError: if the code cannot be parsed.
    """
    for arguments in (["check", "--select=I", "--fix", "--quiet"], ["format"]):
        # The path decides about the settings: those of the repository's pyproject.toml.
        here = str(Path(__file__).with_name("generated.py"))
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", here, "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GenerateError(
                f"ruff does not take what was generated: {done.stderr or done.stdout}"
            )
        text = done.stdout
    return text
