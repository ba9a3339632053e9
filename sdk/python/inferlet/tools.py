"""Calls of tools in what a model writes, in the formats of the model families.

| family | a call |
|---|---|
| Hermes, Qwen | `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>` |
| Mistral | `[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]` |
| Llama 3 | `<|python_tag|>{"name": "add", "parameters": {"a": 1}}`, or the JSON alone |
| Llama 4, pie-tiny | `[add(a=1)]`, `Action: add(1)`, `[CALL]a1[HEAD]add(a=1)[END]` |
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from inferlet.mcp import Tool

_MARKS = re.compile(r"<\|?/?\w+\|?>|\[TOOL_CALLS\]|\[CALL\]\w*|\[HEAD\]|\[END\]|^\s*Action:", re.M)
_CALL = re.compile(r"(?<!\w)(?<!\)\.)([A-Za-z_][\w.]*)\(")  # no method of a call's result


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wants.

    Attributes:
        name: of the tool.
        arguments: by name.
        values: arguments without a name, in order.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    values: tuple[Any, ...] = ()


def parse(text: str) -> list[ToolCall]:
    """The calls in a text, in order. What is no call, and a call that is not complete, is left out.

    A name with parentheses is a call only where their content reads as literals.
    """
    plain = _MARKS.sub(" ", text)
    return list(_json_calls(plain)) or list(_python_calls(plain))


def schema(tools: Mapping[str, Any] | Iterable[Mapping[str, Any] | Tool]) -> dict[str, Any]:
    """The JSON schema of one call, for a grammar.

    Args:
        tools: for each name the JSON schema of its arguments; or a list, as in
            `Context(model, chat={"tools": [...]})` or of `mcp.list_tools`.

    Raises:
        ValueError: one of a list has no name.
    """
    named = tools if isinstance(tools, Mapping) else dict(map(_named, tools))
    calls = [
        {
            "type": "object",
            # With an id it is a resource of its own: `#/$defs/X` in it is its own X.
            "properties": {"name": {"const": name}, "arguments": {**arguments, "$id": str(at)}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for at, (name, arguments) in enumerate(named.items())
    ]
    return {"anyOf": calls}


def _named(tool: Mapping[str, Any] | Tool) -> tuple[str, Mapping[str, Any]]:
    """Name and arguments' schema of a tool: OpenAI's, with `function` around or not, Anthropic's or
    MCP's.
    """
    if isinstance(tool, Tool):
        return tool.name, tool.input_schema
    given = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(name := given.get("name"), str):
        raise ValueError(f'a tool is {{"name": ..., "parameters": {{...}}}}, not {tool!r:.200}')
    keys = ("parameters", "input_schema", "inputSchema")
    return name, next((given[key] for key in keys if given.get(key)), {"type": "object"})


def _json_calls(text: str) -> Iterator[ToolCall]:
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        at = end
        given = found.get("arguments", found.get("parameters", {}))
        if isinstance(found.get("name"), str) and isinstance(given, dict):
            yield ToolCall(found["name"], given)


def _python_calls(text: str) -> Iterator[ToolCall]:
    end = 0
    for match in _CALL.finditer(text):
        if match.start() < end:
            continue  # within the arguments of the one before
        # The first parenthesis behind which it parses closes the call, what follows is text.
        for close in (m.end() for m in re.finditer(r"\)", text[match.end() :])):
            try:
                node = ast.parse(text[match.start() : match.end() + close], mode="eval").body
            except Exception:  # noqa: BLE001  whatever ends it, this is no call yet
                continue
            if call := _literal_call(match[1], node):
                end = match.end() + close
                yield call
            break


def _literal_call(name: str, node: ast.expr) -> ToolCall | None:
    """A call whose arguments are literals; None if it is none."""
    if not isinstance(node, ast.Call):
        return None
    with suppress(Exception):  # a name among the arguments, say
        values = tuple(map(ast.literal_eval, node.args))
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return ToolCall(name, named, values) if all(k.arg for k in node.keywords) else None
    return None
