"""A server that is told to stop lets its instances end, and takes no new ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.servers import Server

from pie_py.client.errors import RpcError
from pie_py.testing.script import replaying

WAITS = """
from inferlet import session

async def main(args):
    session.send("ready")
    return await session.receive()
"""


def stop(server: Server) -> None:
    """Asks it to stop, and waits until it has begun with that."""
    server.ask_to_stop()
    while "no more launches" not in server.log:
        time.sleep(0.01)


def test_instances_end_by_themselves_until_the_second_signal(short_folder: Path) -> None:
    settings = replaying(short_folder)
    with Server(short_folder, **settings, stop_seconds=600) as server, server.client() as client:
        program = client.upload(WAITS.encode(), "waits")
        instance, other = client.launch(program), client.launch(program)
        assert [one.receive(60) for one in (instance, other)] == ["ready"] * 2
        stop(server)
        with pytest.raises(RpcError, match="busy: the server is stopping"):
            client.launch(program)
        instance.send("done")
        assert instance.result(60) == "done"
        assert server.process.poll() is None
        server.ask_to_stop()
        server.process.wait(60)
