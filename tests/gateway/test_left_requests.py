"""Requests whose clients leave leave nothing behind."""

from __future__ import annotations

import anyio
from support.servers import Server

from pie_gateway.backend.generation import Generation
from pie_gateway.backend.job import Job
from pie_py.client import Client, Instance

DEAF = b"""
import asyncio

async def main(args):
    await asyncio.sleep(3600)
"""


async def test_an_instance_that_does_not_take_its_images_ends_with_its_request(
    server: Server,
) -> None:
    async with Client(server.endpoint) as client:
        program = await client.upload(DEAF, "deaf")
        launched: list[Instance] = []

        async def launch(argument: str) -> Instance:
            launched.append(await client.launch(program, [argument]))
            return launched[-1]

        images = [b"i" * (1 << 20)] * 40  # more than a mailbox takes
        with anyio.move_on_after(2) as leaves:
            async with Generation(launch, Job("pie-tiny", {}), images):
                pass
        assert leaves.cancelled_caught
        [instance] = launched
        alive = await client.instances()
        assert instance.id not in [each["id"] for each in alive]
