"""The library: rules and programs that the server brings, as texts in `rules/`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pie_py.device_programs.functions import FUNCTIONS, NAMES, Word
from pie_py.device_programs.plain_functions import BUILT_IN
from pie_py.device_programs.program import ProgramFault
from pie_py.device_programs.scope import Function, Module, Scope, Text, meant

_RULES = Path(__file__).with_name("rules")
IMPORTED = ("device", "samplers", "attention", "math")  # modules whose names programs may say
_ASIDE = (
    "Tensor",
    "State",
    "Value",
    "program",
    "attend",
    "layers",
)  # of annotations and decorators


@cache
def programs() -> Mapping[str, Text]:
    """The programs of the library, by name."""
    found = {}
    for name in ("programs", "attention", "layers"):
        source = (_RULES / f"{name}.py").read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                text = ast.get_source_segment(source, node) or ""
                found[node.name] = Text(node.name, 1, text)
    return found


def rule_text(name: str) -> Text:
    """The text of a program of the library.

    Raises:
        ProgramFault: there is none of this name.
    """
    if name not in programs():
        raise ProgramFault(f"there is no program {name!r:.60}{meant(name, programs())}")
    return programs()[name]


@cache
def library() -> Scope:
    """All functions of the library."""
    scope = Scope(None, language(), {})
    for file in sorted(_RULES.glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                scope.names[node.name] = Function(node.name, node, scope)
    return scope


@cache
def language() -> Scope:
    """The words of the language."""
    modules = {name: Module(name) for name in IMPORTED}
    aside = dict.fromkeys(_ASIDE)
    words = {name: Word(name, function) for name, function in FUNCTIONS.items()}
    words |= {name: Word(name, function, reads=True) for name, function in BUILT_IN.items()}
    return Scope(None, None, {**NAMES, **words, **modules, **aside})
