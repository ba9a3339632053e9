"""Chat with functions that the server calls while the model writes on: models `async/NAME`."""

from __future__ import annotations

from typing import Any

import msgspec

from pie_gateway.backend.job import Job
from pie_gateway.dialects import dialect_of
from pie_gateway.http.admission import Exchange
from pie_gateway.openai.conversation import render
from pie_gateway.openai.sampling import most_tokens, sampling
from pie_gateway.openai.talk import Talk
from pie_gateway.problems import unsupported, wrong
from pie_gateway.schemas.chat import ChatRequest, Tool
from pie_gateway.schemas.messages import AssistantMessage, Message, ToolMessage, UserMessage
from pie_gateway.schemas.sampling import PlainText, StructuredOutputs

PREFIX = "async/"
# What cannot be had with calls in the middle of a text, and the values that do not ask for it.
REFUSED: dict[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": False,
    "bad_words": [],
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "logprobs": False,
    "min_tokens": 0,
    "priority": 0,
    "prompt_logprobs": None,
    "response_format": PlainText(),
    "return_token_ids": False,
    "skip_special_tokens": True,
    "stop": [],
    "stop_token_ids": [],
    "structured_outputs": StructuredOutputs(),
    "top_logprobs": 0,
    "truncate_prompt_tokens": None,
}


async def prepare(exchange: Exchange, asked: ChatRequest) -> Talk:
    """Checks a request. Raises `Problem`: 400 or 404, naming what is wrong."""
    backend = exchange.backend
    name = await backend.catalog.find(asked.model.removeprefix(PREFIX))
    for field, nothing in REFUSED.items():
        if getattr(asked, field) not in (None, nothing):
            raise unsupported(field, "it does not go with asynchronous calls")
    if asked.n not in (None, 1):
        raise unsupported("n", "it does not go with asynchronous calls")
    if asked.tool_choice not in (None, "auto"):
        raise unsupported("tool_choice", "asynchronous calls are the model's choice")
    if asked.parallel_tool_calls is False:
        raise unsupported("parallel_tool_calls", "asynchronous calls run side by side")
    last = len(asked.messages) - 1
    for at, message in enumerate(asked.messages):
        if not _is_text(message) or (at == last and not isinstance(message, UserMessage)):
            where = f"messages[{at}]"
            raise wrong(
                where, "asynchronous calls take a conversation of texts, and last the user's"
            )
    words = await backend.vocabulary(name.model)
    job = Job(
        model=name.model,
        adapter=name.adapter,
        sampler=sampling(asked, words),
        messages=msgspec.json.encode(render(asked.messages)[0]).decode(),
        tools=msgspec.json.encode(_tools(asked)).decode(),
        max_tokens=most_tokens(asked.max_completion_tokens, asked.max_tokens),
        stream=bool(asked.stream),
    )
    dialect = dialect_of(words, marked=False)  # the inferlet sends no calls
    return Talk(asked.model, job, await exchange.generation("async", job), words, dialect)


def _is_text(message: Message) -> bool:
    if isinstance(message, ToolMessage):
        return False
    if isinstance(message, AssistantMessage) and message.tool_calls:
        return False
    return isinstance(message.content, str)


def _tools(asked: ChatRequest) -> list[dict[str, Any]]:
    """The specifications, as a tools file has them."""
    if not asked.tools:
        raise unsupported("tools", "asynchronous calls want some")
    for at, tool in enumerate(asked.tools):
        if isinstance(tool, Tool) and tool.run is None:
            raise unsupported(
                f"tools[{at}].run",
                "where the server runs the function is missing; one of the client's own cannot be"
                " called before the answer",
            )
    tools = msgspec.to_builtins(asked.tools)
    return [{key: value for key, value in tool.items() if value is not None} for tool in tools]
