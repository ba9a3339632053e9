"""Asynchronous function calling: calls run while the model writes on (AsyncLM).

Run: pie-py run inferlets/async_function_calling --request "..." --tools @tools.json
Results are put in as interrupts, in mid-generation; see docs/async-function-calling.md. `--mode`
has what the paper compares it with (sections 5.5 and 6).
"""

from __future__ import annotations

from asynclm.calling.answering import answer, parse


async def main(args: list[str]) -> str:
    """Answers a request; returns nothing, or all about it as JSON. What it shows, it sends."""
    return await answer(*parse(args))
