"""The wrapper of ZeroMQ's sockets: a task that waits for input always wakes when there is some."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing
import zmq

from pie_py.wire.zmq_socket import Socket

SECONDS = 10.0  # bound on each wait


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_a_send_that_fails_leaves_no_task_asleep(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Also a failed send takes the signal that a message has come."""
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    socket = Socket(router)
    received: list[bytes] = []

    async def read() -> None:
        while not received:
            while (frames := socket.receive_frames()) is not None:
                received.append(frames[1].bytes)
            if not received:
                await socket.wait()

    async def main() -> None:
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                dealer = context.socket(zmq.DEALER)
                dealer.connect(f"tcp://127.0.0.1:{port}")
                dealer.send(b"hello")
                # The loop does not run meanwhile: the send comes before the task sees the signal.
                while not _holds_message(router):
                    pass
                assert socket.send(b"gone", b"late") == zmq.EHOSTUNREACH

    trio.run(main)
    assert received == [b"hello"]


ROUTING_ID = """
import zmq
from pie_py.wire.zmq_socket import new_router
context = zmq.Context()
router, dealer = new_router(context), context.socket(zmq.DEALER)
router.bind("inproc://here")
dealer.connect("inproc://here")
dealer.send(b"")
print(router.recv_multipart()[0].hex())
"""


def test_processes_begin_with_different_routing_ids() -> None:
    command = [sys.executable, "-c", ROUTING_ID]
    first, second = (subprocess.check_output(command, text=True) for _ in range(2))
    assert len(first) == len(second) > 0
    assert first != second


def _holds_message(router: zmq.Socket[bytes]) -> bool:
    """Whether a message of a new connection has come, without taking the signal."""
    descriptor = router.getsockopt(zmq.FD)
    assert isinstance(descriptor, int)
    return bool(select.select([descriptor], [], [], SECONDS)[0])
