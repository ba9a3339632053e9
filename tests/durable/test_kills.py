"""Durable instances count, while their server and its worker are killed at any moment."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pytest
from support.durable import COUNT, MODELS, Game
from support.servers import Server

from pie_py.client import Client

ROUNDS, COUNTERS = 12, 4


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
        endpoint = server.endpoint  # which stays
        plain = Game(lambda: Client(endpoint), program, "plain", COUNTERS, ROUNDS, durable=False)
        plain.thread.join()
        while kills:
            game = Game(lambda: Client(endpoint), program, str(kills), COUNTERS, ROUNDS)
            games.append(game)
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
