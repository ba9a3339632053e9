"""Conversations that wait for tools: one whose tool is usually fast finds its prefix when it comes
back, though memory was short meanwhile and others were asked for later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.gateways import Gateway
from support.servers import Server, until

PAGE = 8
PAGES = 128
TOPIC = {"type": "object", "properties": {"topic": {"enum": ["x", "y"]}}, "required": ["topic"]}


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    """Of a server that has seen no tool, with little memory."""
    sizes = {"page_size": PAGE, "kv_pages": PAGES, "host_pages": 0}
    with (
        Server(models=[{"source": "pie-tiny", **sizes}]) as server,
        Gateway(server) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


class Conversation:
    """One that calls a tool in each turn."""

    def __init__(
        self, client: openai.OpenAI, tool: str, topic: str, hints: dict[str, Any] | None = None
    ) -> None:
        self.client, self.tool, self.hints = client, tool, hints
        self.prompt = 0  # tokens of the last one
        self.messages: list[Any] = [{"role": "user", "content": f"{topic} " * 30}]

    def turn(self) -> int:
        """Asks, and calls the tool; returns how many tokens of the prompt were cached."""
        function = {"name": self.tool, "parameters": TOPIC}
        answer = self.client.chat.completions.create(  # type: ignore[call-overload]
            model="pie-tiny",
            messages=self.messages,
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": self.tool}},
            temperature=0,
            extra_body=self.hints,
        )
        [call] = answer.choices[0].message.tool_calls or []
        called = call.model_dump()
        if self.hints:  # a client with ids of its own
            called["id"] = f"own{len(self.messages)}"
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": called["id"], "content": "done"},
        ]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        self.prompt = answer.usage.prompt_tokens
        return answer.usage.prompt_tokens_details.cached_tokens or 0


def fill(client: openai.OpenAI, token: int, pages: int) -> None:
    """Takes so many pages for another text."""
    client.completions.create(
        model="pie-tiny", prompt=[token] * (pages * PAGE - 1), max_tokens=1, temperature=0
    )


def until_over(client: openai.OpenAI) -> None:
    """Waits until no program has pages any more: it may end a little after its answer."""
    until(lambda: not client.get("/server", cast_to=dict[str, Any])["instances"])


@pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_conversation_with_a_fast_tool_keeps_its_prefix(
    client: openai.OpenAI, named: bool
) -> None:
    def conversation(tool: str, topic: str) -> Conversation:
        return Conversation(client, tool, topic, {"session_id": topic} if named else None)

    conversation("other", "warm").turn()
    begun = time.monotonic()
    fast = conversation("fast", "taught")
    fast.turn()
    fast.turn()
    seconds = time.monotonic() - begun
    slow = conversation("slow", "learnt")
    slow.turn()
    time.sleep(max(2.0, 10 * seconds))  # that is what its tool takes
    slow.turn()
    fill(client, 30, PAGES - 8)

    first, second = conversation("fast", "first"), conversation("slow", "second")
    first.turn()
    second.turn()
    until_over(client)
    fill(client, 31, PAGES - 45)  # what is left has room for one, and what both begin with
    before = first.prompt
    assert first.turn() > before - PAGE, "the oldest leaves first"
    before = second.prompt
    assert second.turn() < before - PAGE


def test_what_a_person_reads_leaves_before_what_waits_for_a_tool(client: openai.OpenAI) -> None:
    """Though it is younger, and of the tool nothing is known."""
    waiting = Conversation(client, "unheard", "older")
    waiting.turn()
    client.chat.completions.create(  # type: ignore[call-overload]
        model="pie-tiny",
        messages=[{"role": "user", "content": "younger " * 30}],
        tools=[{"type": "function", "function": {"name": "unheard", "parameters": TOPIC}}],
        tool_choice="none",
        max_tokens=1,
    )
    until_over(client)
    fill(client, 32, PAGES - 34)
    before = waiting.prompt
    assert waiting.turn() > before - PAGE
