"""Durable instances count, while their server and its worker are killed at any moment."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from support.durable import COUNT, MODELS
from support.servers import Server

from pie_py.client import Client

ROUNDS, COUNTERS = 12, 4


class Game:
    """Some counters that play, each with a client of its own, in a thread."""

    def __init__(self, endpoint: str, program: str, name: str, *, durable: bool) -> None:
        self.found: list[Any] = []  # what each heard, and its result
        self.begun = threading.Semaphore(0)  # counters that were launched
        self._game = endpoint, program, name, durable
        self.thread = threading.Thread(target=anyio.run, args=(self._play,))
        self.thread.start()

    async def _play(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(COUNTERS):
                tasks.start_soon(self._count, number)

    async def _count(self, number: int) -> None:
        endpoint, program, name, durable = self._game
        async with Client(endpoint) as client:
            args = ["--name", f"{name}{number}", "--rounds", str(ROUNDS)]
            args += ["--anew", str(int(durable))]
            instance = await client.launch(program, args, durable=durable)
            self.begun.release()
            heard = []
            async for message in instance:
                heard.append(message)
                await instance.send(f" {len(heard)}")
            self.found.append((heard, await instance.result()))


@pytest.mark.parametrize(
    "kills",
    [2, pytest.param(50, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])],
    ids=["few", "many"],
)
def test_nothing_is_lost_or_doubled(kills: int, short_folder: Path) -> None:
    chance = random.Random(kills)
    games = []
    server = Server(short_folder, models=MODELS).__enter__()
    try:
        with server.client() as client:
            program = client.upload(COUNT.encode(), "count")
        plain = Game(server.endpoint, program, "plain", durable=False)
        plain.thread.join()
        while kills:
            games.append(game := Game(server.endpoint, program, str(kills), durable=True))
            for _ in range(COUNTERS):
                game.begun.acquire()
            while game.thread.is_alive() and kills:
                game.thread.join(chance.uniform(0.05, 1.5))
                kills -= 1
                if kills % 2 and (worker := worker_of(server)) is not None:
                    worker.kill()
                    continue
                server.kill()
                server = Server(short_folder, models=MODELS).__enter__()
            game.thread.join()
    finally:
        server.__exit__(None, None, None)
    assert [game.found for game in games] == [[plain.found[0]] * COUNTERS] * len(games)


def worker_of(server: Server) -> psutil.Process | None:
    """The worker, if there is one."""
    try:
        return server.worker
    except AssertionError:
        return None
