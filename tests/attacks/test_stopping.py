"""A server that is told to stop lets its instances end, and takes no new ones."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Server

from pie_py.client.errors import RpcError


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:  # sockets' paths are short
        yield Path(folder)


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


def test_instances_end_by_themselves_after_the_first_signal(short_folder: Path) -> None:
    with Server(short_folder, stop_seconds=60) as server, server.client() as client:
        program = client.upload(WAITS.encode(), "waits")
        instance = client.launch(program)
        assert instance.receive(60) == "ready"
        stop(server)
        with pytest.raises(RpcError, match="busy: the server is stopping"):
            client.launch(program)
        instance.send("done")
        assert instance.result(60) == "done"


def test_the_second_signal_ends_them(short_folder: Path) -> None:
    with Server(short_folder, stop_seconds=600) as server, server.client() as client:
        instance = client.launch(client.upload(WAITS.encode(), "waits"))
        assert instance.receive(60) == "ready"
        stop(server)
        server.ask_to_stop()
        server.process.wait(60)
