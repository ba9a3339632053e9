"""`tool_choice`: which functions the template is told of, and what the text has to look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pie_gateway.backend.job import Grammar


def required_calls(functions: Sequence[tuple[str, dict[str, Any]]], *, parallel: bool) -> Grammar:
    """A list of calls in JSON, at least one.

    Args:
        functions: names and the JSON schemas of their arguments.
        parallel: whether there may be several.
    """
    options = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in functions
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": options}}
    if not parallel:
        schema["maxItems"] = 1
    return Grammar("json-schema", json.dumps(schema))
