"""The grammar of a block, from after `[CALL]` to `[END]`, for the server's constrained decoding.

Three degrees: only the markers in order, a call that can be read, or a call of a known function
with its arguments by name, in order, none twice, none missing that is required, and their types
where the specification has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asynclm.choices import Strictness, Syntax
from asynclm.cml.dialect import Dialect, Marker
from asynclm.values import Value
from inferlet.grammar import Grammar

LONGEST_IDENTIFIER = 32  # characters


class Signature(Value):
    """A function in a grammar: its name, and its parameters' JSON schemas by name."""

    name: str
    parameters: Mapping[str, Mapping[str, Any]]
    required: Sequence[str] = ()


def block_grammar(
    dialect: Dialect,
    syntax: Syntax,
    signatures: Sequence[Signature],
    strictness: Strictness = Strictness.TOOLS,
    *,
    named: bool = False,
) -> Grammar:
    """The grammar of `identifier [HEAD] call [END]`, or `call [END]` if no answer is expected.

    Args:
        dialect: how the model writes the markers.
        syntax: of the calls.
        signatures: the functions there are, at least one if the strictness is `TOOLS`.
        strictness: what calls are held to.
        named: whether each call has an identifier.
    """
    if strictness is Strictness.MARKERS and dialect.is_text:
        name = rf"/{_IDENTIFIER}\[HEAD\](?s:.+)/" + (
            "" if named else r" | ~/(?s:.*)\[HEAD\](?s:.*)/"
        )
        return Grammar.lark(f"start: BLOCK\nBLOCK: {_UP_TO_END} & ({name})")
    head, end = _marker(dialect, Marker.HEAD), _marker(dialect, Marker.END)
    name = f"IDENTIFIER {head}" if named else f"(IDENTIFIER {head})?"
    rules = [f"start: {name} call {end}", f"IDENTIFIER: /{_IDENTIFIER}/"]
    if strictness is Strictness.MARKERS:
        rules.append("call: /(?s:.+)/")
    elif syntax is Syntax.JSON:
        rules += _json_rules(dialect, signatures if strictness is Strictness.TOOLS else None)
    else:
        rules += _python_rules(dialect, signatures if strictness is Strictness.TOOLS else None)
    return Grammar.lark("\n".join(rules))


_IDENTIFIER = f"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST_IDENTIFIER - 1}}}"
# A terminal takes all it can: where markers are text, a whole block has to be one to have an end.
_UP_TO_END = (
    r"/(?s:.+)\[END\]/ & ~/(?s:.*)\[END\](?s:.+)/ & ~/(?s:.*)\[(CALL|INTR|TRAP)\](?s:.*)/"
    r" & ~/(?s:.*)\[HEAD\](?s:.*)\[HEAD\](?s:.*)/"
)


def _marker(dialect: Dialect, marker: Marker) -> str:
    return json.dumps(str(marker)) if dialect.is_text else f"<[{dialect.markers[marker]}]>"


def _no_marker(dialect: Dialect) -> str:
    """A rule that keeps a text from holding a marker, where markers are text themselves."""
    if not dialect.is_text:
        return ""
    names = "|".join(marker[1:-1] for marker in Marker)
    return rf" & ~/(?s:.*)\[({names})\](?s:.*)/"


def _python_rules(dialect: Dialect, signatures: Sequence[Signature] | None) -> list[str]:
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
    if signatures is None:
        return [
            'call: NAME "(" (argument ("," " "? argument)*)? ")"',
            r"NAME: /[A-Za-z_]\w*(\.[A-Za-z_]\w*)*/",
            r"argument: /[A-Za-z_]\w*=/ value | value",
            *rules,
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


def _json_rules(dialect: Dialect, signatures: Sequence[Signature] | None) -> list[str]:
    if dialect.is_text:
        # A JSON schema can't keep texts from holding a marker, at which the parser would end.
        free = _no_marker(dialect)
        return [
            r'call: "{\"name\": " TEXT ", \"arguments\": " object "}"',
            'value: TEXT | NUMBER | "true" | "false" | "null" | array | object',
            'array: "[" (value ", "?)* "]"',
            'object: "{" (TEXT ": " value (", " TEXT ": " value)*)? "}"',
            rf'TEXT: /"([^"\\\x00-\x1f]|\\["\\\/bfnrtu])*"/{free}',
            r"NUMBER: /-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
        ]
    if signatures is None:
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        return [f"call: %json {json.dumps(schema)}"]
    calls, rules = [], []
    for number, signature in enumerate(signatures):
        start = json.dumps(f'{{"name": {json.dumps(signature.name)}, "arguments": ')
        calls.append(f'{start} arguments{number} "}}"')
        schema = {
            "type": "object",
            "properties": dict(signature.parameters),
            "required": list(signature.required),
            "additionalProperties": False,
        }
        rules.append(f"arguments{number}: %json {json.dumps(schema)}")
    return ["call: " + " | ".join(calls), *rules]
