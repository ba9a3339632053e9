"""Tools for a model whose chat template tells of none: a prompt of ours, and calls held to a form.

It works as well as the model follows instructions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from pie_gateway.backend.job import Grammar

Messages: TypeAlias = list[dict[str, Any]]  # as chat templates want them

_PROMPT = """\
You can call functions. To call one, answer with nothing but

<tool_call>
{"name": "the function's name", "arguments": {"an argument": "its value"}}
</tool_call>

You get its result in the next message. Call none if none helps. The functions are:

"""


def as_plain_text(messages: Messages, tools: Sequence[dict[str, Any]]) -> Messages:
    """Messages of plain text: what tools there are, what was called, and what calls have given."""
    plain: Messages = []
    role = ""
    for message in messages:
        before, role = role, message["role"]
        if role == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if before == "tool":
                result = f"{plain.pop()['content']}\n{result}"
            plain.append({"role": "user", "content": result})
        elif calls := message.get("tool_calls"):
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            said = [message["content"]] if message["content"] else []
            plain.append({**rest, "content": "\n".join([*said, *map(_call, calls)])})
        else:
            plain.append(message)
    return _with_prompt(plain, tools) if tools else plain


def _call(call: dict[str, Any]) -> str:
    function = call["function"]
    written = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(written, ensure_ascii=False)}\n</tool_call>"


def _with_prompt(messages: Messages, tools: Sequence[dict[str, Any]]) -> Messages:
    prompt = _PROMPT + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    roles = [message["role"] for message in messages]
    at = next((roles.index(role) for role in ("system", "user") if role in roles), None)
    if at is None:
        return [{"role": "user", "content": prompt}, *messages]
    first, content = messages[at], messages[at]["content"]
    if isinstance(content, str):
        parts = [content, prompt] if first["role"] == "system" else [prompt, content]
        content = "\n\n".join(parts)
    else:
        content = [{"type": "text", "text": prompt + "\n\n"}, *content]
    return [*messages[:at], {**first, "content": content}, *messages[at + 1 :]]


def text_or_calls(calls: Grammar) -> Grammar:
    """A text, or calls, by `required_calls`: what begins with the marker is held to the schema."""
    schema = json.loads(calls.text)
    one = {**schema["items"], "x-guidance": schema["x-guidance"]}
    return Grammar(
        "lark",
        f"start: call{{1,{schema['maxItems']}}} | TEXT\n"
        r"TEXT: /(?s:[^<].*)?/"
        "\n"
        'call: "<tool_call>\\n" arguments "\\n</tool_call>" "\\n"?\n'
        f"arguments: %json {json.dumps(one)}\n",
        "tools",
    )
