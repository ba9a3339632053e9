"""What a client does whose node cannot be reached, at a real gateway."""

from __future__ import annotations

import socket
import threading
from functools import partial
from pathlib import Path

import anyio
import msgspec
from cluster.messages import join
from support.clusters import wait_for
from support.nodes import Nodes

from pie_py.client import Client


def zmq_threads() -> int:
    """Of connections that there are."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(task.joinpath("comm").read_text().startswith("ZMQbg") for task in tasks)


async def test_who_gives_a_node_up_leaves_no_connection(tmp_path: Path) -> None:
    with Nodes(tmp_path, "", ("ann",)) as nodes, socket.create_server(("127.0.0.1", 0)) as silent:
        told = msgspec.structs.asdict(join())
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        told["about"] = msgspec.structs.replace(told["about"], endpoint=endpoint)
        report = partial(nodes.asked.ask, "report", **told)
        over = threading.Event()

        def keep() -> None:
            while not over.wait(0.5):
                report()

        reporting = threading.Thread(target=keep)
        reporting.start()
        try:
            wait_for(lambda: bool(nodes.ready()))
            async with Client(nodes.gateway, nodes.key("ann"), patience=60) as client:
                before = zmq_threads()
                for _ in range(3):
                    with anyio.move_on_after(0.5) as scope:
                        await client.inspect("chat-00000000@n1.1")
                    assert scope.cancelled_caught
                with anyio.fail_after(20):
                    while zmq_threads() > before + 3:  # those of who reports come and go
                        await anyio.sleep(0.05)
        finally:
            over.set()
            reporting.join()
