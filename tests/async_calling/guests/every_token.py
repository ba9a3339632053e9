"""Has a result arrive at one token after the other of a call that is being written.

Returns, for each token, the events of calls and interrupts in order, and what the second call got.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from support.forced_calls import Order, Script, ScriptedCall

from asynclm.calling.generation import Generation
from asynclm.calling.options import Options
from asynclm.tools.tool import Tool
from inferlet import Model


async def attempt(token: int) -> list[object]:
    given: list[object] = []
    seen: list[str] = []

    async def early(arguments: dict[str, object]) -> str:
        await generation.reached.wait()
        return "early"

    async def late(arguments: dict[str, object]) -> str:
        given.append(arguments)
        return "late"

    def hear(event: dict[str, object]) -> None:
        if event["type"] in ("call", "result", "interrupt"):
            seen.append(f"{event['type']} {event['id']}")
        elif event["type"] == "trap":  # all is written that can be
            generation.reached.set()

    parameters: dict[str, dict[str, object]] = {"x": {}, "y": {}}
    tools = [Tool("early", early), Tool("late", late, parameters=parameters)]
    calls = [ScriptedCall("a", "early()"), ScriptedCall("b", 'late(x="some words", y=[1, 2])')]
    script = Script(calls, order=Order.GIVEN)
    options = Options(script=script)
    generation = Counting(Model.load(), tools, options, on_event=hear)
    generation.wanted = token
    await generation.run("do it")
    return [seen, given]


class Counting(Generation):
    """Tells when so many tokens are written."""

    wanted = 0
    count = 0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.reached = asyncio.Event()

    def _read(self, tokens: Sequence[int]) -> bool:
        self.count += len(tokens)
        if self.count >= self.wanted:
            self.reached.set()
        return super()._read(tokens)


async def main(args: list[str]) -> str:
    first, last = map(int, args)
    attempts = (attempt(token) for token in range(first, last, 2))
    return json.dumps(await asyncio.gather(*attempts))
