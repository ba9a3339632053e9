"""Several generations read as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from pie_gateway.backend.events import End, Event, Piece
from pie_gateway.backend.generation import Generation

WAITING = 16  # events read ahead of the reader


async def merged(
    generations: Sequence[Generation], choices: int
) -> AsyncGenerator[tuple[int, Event], None]:
    """Launches generations and yields their events, each with the number of its generation.

    The choices of generation `i` are counted from `i * choices`. Instances end with the generator.

    Raises:
        Problem: one of them fails.
    """
    if len(generations) == 1:
        async with generations[0] as generation:
            yield 0, await generation.prompt()
            async for event in generation.events():
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Event | Exception | None]] = asyncio.Queue(WAITING)

    async def read(number: int, generation: Generation) -> None:
        try:
            async with generation:
                await queue.put((number, await generation.prompt()))
                async for event in generation.events():
                    await queue.put((number, event))
            await queue.put((number, None))
        except Exception as error:  # raised by the reader
            await queue.put((number, error))

    tasks = [asyncio.create_task(read(at, each)) for at, each in enumerate(generations)]
    running = len(tasks)
    try:
        while running:
            number, told = await queue.get()
            if isinstance(told, Exception):
                raise told
            if told is None:
                running -= 1
                continue
            if isinstance(told, Piece | End):
                told.choice += number * choices
            yield number, told
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
