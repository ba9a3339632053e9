"""Shares work among instances: one adds tasks, each of which exactly one worker gets.

Run: pie-py run examples/work_queue.py -- work           (as many as you like, on one server)
     pie-py run examples/work_queue.py -- add 12
"""

import asyncio

from inferlet import messaging, runtime, session


async def add(count: int) -> str:
    """Adds tasks, passes on their results, and sends the workers home."""
    for task in range(count):
        await messaging.push("tasks", task)
    for _ in range(count):
        session.send(await messaging.pull("results") + "\n")
    return f"{await messaging.broadcast('news', 'go home')} workers went home\n"


async def work() -> str:
    """Answers tasks until there is news."""
    with messaging.subscribe("news") as news:
        session.send("waiting for work\n")
        answering = asyncio.create_task(answer())
        text = await news.receive()
        answering.cancel()
    return text


async def answer() -> None:
    """Takes one task after the other."""
    while True:
        task = int(await messaging.pull("tasks"))
        await messaging.push("results", f"{runtime.instance_id()}: {task}² = {task * task}")


async def main(args: list[str]) -> str:
    """Adds a number of tasks, or works."""
    return await add(int(args[1])) if args[:1] == ["add"] else await work()
