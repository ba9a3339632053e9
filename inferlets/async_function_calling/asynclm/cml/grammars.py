"""The grammar of a block, from after `[CALL]` to `[END]`, for the server's constrained decoding.

A call is of a known function, with its arguments by name, in order, none twice, none missing that
is required, and their types where the specification has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asynclm.cml.dialect import Dialect, Marker
from inferlet.grammar import Grammar

LONGEST_IDENTIFIER = 32  # characters


@dataclass(frozen=True, slots=True)
class Signature:
    """A function in a grammar: its name, and its parameters' JSON schemas by name."""

    name: str
    parameters: Mapping[str, Mapping[str, Any]]
    required: Sequence[str] = ()


def block_grammar(
    dialect: Dialect, signatures: Sequence[Signature], *, named: bool = False
) -> Grammar:
    """The grammar of `identifier [HEAD] call [END]`, or `call [END]` if no answer is expected,
    unless each call is `named`; there is at least one function.
    """
    head, end = _marker(dialect, Marker.HEAD), _marker(dialect, Marker.END)
    name = f"IDENTIFIER {head}" if named else f"(IDENTIFIER {head})?"
    rules = [f"start: {name} call {end}", f"IDENTIFIER: /{_IDENTIFIER}/"]
    return Grammar.lark("\n".join([*rules, *_call_rules(dialect, signatures)]))


_IDENTIFIER = f"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST_IDENTIFIER - 1}}}"


def _marker(dialect: Dialect, marker: Marker) -> str:
    return json.dumps(str(marker)) if dialect.is_text else f"<[{dialect.markers[marker]}]>"


def _no_marker(dialect: Dialect) -> str:
    """A rule that keeps a text from holding a marker, where markers are text themselves."""
    if not dialect.is_text:
        return ""
    names = "|".join(marker[1:-1] for marker in Marker)
    return rf" & ~/(?s:.*)\[({names})\](?s:.*)/"


def _call_rules(dialect: Dialect, signatures: Sequence[Signature]) -> list[str]:
    free = _no_marker(dialect)
    rules = [
        'value: TEXT | NUMBER | "True" | "False" | "None" | list | dict',
        'list: "[" (value ("," " "? value)*)? "]" | "(" (value ("," " "? value)*)? ")"',
        'dict: "{" (TEXT ":" " "? value ("," " "? TEXT ":" " "? value)*)? "}"',
        rf'TEXT: /"([^"\\\x00-\x1f]|\\[^\x00-\x1f])*"/{free}'
        + rf" | /'([^'\\\x00-\x1f]|\\[^\x00-\x1f])*'/{free}",
        r"NUMBER: /-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
        r"INTEGER: /-?[0-9]+/",
        'BOOLEAN: "True" | "False"',
    ]
    calls = []
    for number, signature in enumerate(signatures):
        name = json.dumps(signature.name, ensure_ascii=False)
        calls.append(f'{name} "(" first{number}x0 ")"')
        rules += _argument_rules(number, signature)
    return ["call: " + " | ".join(calls), *rules]


def _argument_rules(number: int, signature: Signature) -> list[str]:
    """Rules of a function's arguments, in its parameters' order, none missing that is required.

    `first0x2` are function 0's arguments from its third parameter on, `more0x2` those that follow
    others.
    """
    rules = []
    parameters = list(signature.parameters.items())
    for place, (key, schema) in enumerate(parameters):
        rest = f"{number}x{place + 1}"
        argument = f"{json.dumps(f'{key}=', ensure_ascii=False)} {_python_type(schema)} more{rest}"
        optional = key not in signature.required
        rules += [
            f"first{number}x{place}: {argument}" + (f" | first{rest}" if optional else ""),
            f'more{number}x{place}: "," " "? {argument}' + (f" | more{rest}" if optional else ""),
        ]
    end = f"{number}x{len(parameters)}"
    return [*rules, f'first{end}: ""', f'more{end}: ""']


def _python_type(schema: Mapping[str, Any]) -> str:
    options = schema.get("enum")
    if options and all(isinstance(option, str) for option in options):
        texts = (json.dumps(json.dumps(o, ensure_ascii=False), ensure_ascii=False) for o in options)
        return f"({' | '.join(texts)})"
    kind = schema.get("type")
    kinds = {"string": "TEXT", "integer": "INTEGER", "number": "NUMBER", "boolean": "BOOLEAN"}
    return kinds.get(kind, "value") if isinstance(kind, str) else "value"
