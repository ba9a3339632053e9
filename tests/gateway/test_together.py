"""Requests of a batch that share instances: how many one gets, and which has one of its own."""

from __future__ import annotations

import anyio
import pytest
from support.servers import Server

from pie_gateway.backend import together
from pie_gateway.backend.generation import Seat
from pie_gateway.backend.together import LONG, Together
from pie_py.client import Client, Instance

# As the program of the library answers, without a model.
PROGRAM = b"""
import json
from inferlet import session


async def main(args):
    while given := json.loads(await session.receive()):
        for number, argument in given:
            session.send(json.dumps([number, None, [len(argument)]]))
"""


def test_an_instance_gets_so_many_and_none_that_is_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "MOST", 3)
    begun: list[str] = []

    async def answers() -> None:
        async with Client(server.endpoint) as client:
            program = await client.upload(PROGRAM, "together")

            async def begin(argument: str) -> Instance:
                begun.append(argument[:10])
                return await client.launch(program, [])

            async with anyio.create_task_group() as tasks:
                shared = Together(tasks)
                places = [await shared.launch(begin, "alike", "x" * i) for i in range(1, 8)]
                assert [await each.receive() for each in places] == [b"%d" % i for i in range(1, 8)]
                assert begun == ["several"] * 3
                last = await shared.launch(begin, "alike", "x" * LONG)
                assert isinstance(last, Seat)
                assert begun == ["several"] * 3
                own = await shared.launch(begin, "alike", "y" * (LONG + 1))
                assert isinstance(own, Instance)
                assert begun[3:] == ["y" * 10]
                await own.send("[]")
                await shared.close()

    anyio.run(answers)
