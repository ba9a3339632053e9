"""An OpenAI-style endpoint at a distance for client-side scripts, with tools and calls at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2


@dataclass
class Choice:
    """One of the texts of an answer."""

    text: str
    finish: str  # `stop` or `length`
    logprobs: list[dict[str, float]] = field(default_factory=list)  # of the likeliest, a token each

    @property
    def score(self) -> float:
        """Log-probability of the likeliest tokens, added up."""
        return math.fsum(max(each.values()) for each in self.logprobs)


class Endpoint:
    """`/v1/completions` of a server that is a round trip away; it is told all of a prompt each
    time.
    """

    def __init__(self, url: str, tools: str, model: str) -> None:
        """Takes base URLs, and the model's name there; `round_trip` is in seconds."""
        self._http = httpx2.AsyncClient(timeout=300)
        self._url, self._tools, self._model = url, tools, model
        self.round_trip = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def complete(
        self,
        prompt: str,
        max_tokens: int,
        *,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        regex: str | None = None,
        **more: Any,
    ) -> list[Choice]:
        """The texts that follow a prompt."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": max_tokens, **more}
        body |= {"temperature": temperature, "skip_special_tokens": False} | (
            {"stop": list(stop)} if stop else {}
        )
        if regex is not None:
            body["structured_outputs"] = {"regex": regex}
        await anyio.sleep(self.round_trip)
        response = await self._http.post(f"{self._url}/v1/completions", json=body)
        if response.is_error:
            raise RuntimeError(f"the endpoint answers {response.status_code}: {response.text}")
        return [
            Choice(
                one["text"],
                one["finish_reason"],
                (one.get("logprobs") or {}).get("top_logprobs", []),
            )
            for one in response.json()["choices"]
        ]

    async def text(self, prompt: str, max_tokens: int, **more: Any) -> str:
        """The text that follows a prompt."""
        return (await self.complete(prompt, max_tokens, **more))[0].text

    async def tool(self, name: str, parameters: dict[str, Any]) -> str:
        """A tool's answer; it is as far from here as from the server."""
        return (await self._http.get(f"{self._tools}/{name}", params=parameters)).text


def chat(user: str, system: str | None = None) -> str:
    """The embedded model's chat format, up to the assistant's turn."""
    before = "" if system is None else f"<|system|>\n{system}<|end|>\n"
    return f"{before}<|user|>\n{user}<|end|>\n<|assistant|>\n"


async def together(*calls: tuple[Callable[..., Awaitable[Any]], tuple[Any, ...]]) -> list[Any]:
    """The results of calls, functions with their arguments, made at once; in their order."""
    results: list[Any] = [None] * len(calls)

    async def call(place: int, function: Callable[..., Awaitable[Any]], given: Any) -> None:
        results[place] = await function(*given)

    async with anyio.create_task_group() as group:
        for place, (function, given) in enumerate(calls):
            group.start_soon(call, place, function, given)
    return results
