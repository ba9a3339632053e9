"""What a request has for the chat template beside its messages."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pie_gateway.problems import unsupported
from pie_gateway.schemas.chat import ChatRequest

_OWN = {"messages", "tools", "add_generation_prompt", "chat_template"}  # of other fields


def template_arguments(
    asked: ChatRequest, known: Collection[str], effort_field: str
) -> dict[str, Any]:
    """The template's arguments by name.

    Args:
        asked: the request.
        known: what the model's template reads.
        effort_field: the request's own name of `reasoning_effort`.

    Raises:
        Problem: 400 naming what the template does not read, and so would have no effect.
    """
    found = dict(asked.chat_template_kwargs or {})
    for name in found:
        if name in _OWN or name not in known:
            raise unsupported(f"chat_template_kwargs.{name}"[:200], _reads(known))
    effort = asked.reasoning_effort
    if effort is None:
        return found
    if "reasoning_effort" in known:
        if effort != "none":
            found.setdefault("reasoning_effort", effort)
    elif "enable_thinking" in known:
        found.setdefault("enable_thinking", effort not in ("none", "minimal"))
    elif effort != "none":
        raise unsupported(effort_field, _reads(known))
    return found


def _reads(known: Collection[str]) -> str:
    names = ", ".join(sorted(name for name in known if name not in _OWN)[:20])
    return f"the model's chat template reads {names or 'nothing but messages'}"
