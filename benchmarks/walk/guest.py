"""Continues a prompt, and counts calls of the SDK's functions meanwhile."""

import json
import sys
from collections import Counter
from types import FrameType

from inferlet import Context, Model, session

counts: Counter[tuple[str, int, str]] = Counter()


def note(frame: FrameType, event: str, argument: object) -> None:
    """Counts a call."""
    if event == "call":
        code = frame.f_code
        counts[code.co_filename, code.co_firstlineno, code.co_name] += 1


async def answer(prompt: str, tokens: int, begin: int, end: int) -> None:
    """Generates tokens; stops before counting begins and ends, until its client says go on."""
    context = Context(Model.load()).fill(prompt)
    number = 0
    async for text in context.generate(max_tokens=tokens, stop=[]).stream_text():
        number += 1
        session.send(text)
        if number in (begin, end):
            sys.setprofile(None)
            session.send("<pause>")
            await session.receive()
            if number == begin:
                sys.setprofile(note)


async def main(args: list[str]) -> str:
    """`prompt` counts all of a short generation, `token BEGIN END` those steps of a long one.

    `text END` counts nothing: the server sends on what the model says.
    """
    if args[0] == "text":
        context = Context(Model.load()).fill("Once upon a time")
        await context.generate(max_tokens=int(args[1]) + 20, stop=[]).send_text()
    elif args[0] == "prompt":
        sys.setprofile(note)
        await answer(args[1], 2, 0, 0)
        sys.setprofile(None)
    else:
        begin, end = map(int, args[1:])
        await answer("Once upon a time", end + 20, begin, end)
    return json.dumps([[*place, count] for place, count in counts.items()])
