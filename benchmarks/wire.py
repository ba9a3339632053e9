"""`wire`: what a message between control process and worker costs, and ZeroMQ's share of it.

Two processes send a message back and forth, in four ways: over a socket of the kernel alone; over
ZeroMQ, waiting in its receive call; looking for input for a while, as the worker does after a plan;
and as the control process does, in an event loop. Each way has what the one before has, and more.
"""

from __future__ import annotations

import multiprocessing
import os
import socket as sockets
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
import zmq

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Report, percentile
from pie_py.wire.zmq_socket import Socket, has_input

KERNEL, RECEIVING, SPINNING, IN_A_LOOP = (
    "kernel's socket",
    "ZeroMQ, receiving",
    "ZeroMQ, looking",
    "ZeroMQ, event loop",
)
WAYS = (KERNEL, RECEIVING, SPINNING, IN_A_LOOP)
WARM_UP = 200
SPIN_SECONDS = 200e-6  # as the worker's


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Round trips of a message between two processes, without and with ZeroMQ."""

    sizes: tuple[int, ...] = options.number_list(
        "--bytes", "300,12000", "Sizes of the message: a plan of one run has 300, of 256 12 000."
    )
    count: int = options.count("--count", 5000, "Round trips of each.", least=100)


def wire(settings: Settings, progress: Progress) -> Report:
    """Measures each way with each size."""
    progress.expect(len(WAYS) * len(settings.sizes))
    rows: list[list[object]] = []
    for way in WAYS:
        for size in settings.sizes:
            times = _round_trips(way, size, settings.count)
            rows.append([way, size, statistics.median(times), percentile(times, 0.99)])
            progress(f"{way}, {size} bytes")
    return Report(
        "A message to another process and back, in µs",
        ["way", "bytes", "median", "99th percentile"],
        rows,
        ["The other process waits as the first does; beside an event loop it looks for input."],
    )


def _round_trips(way: str, size: int, count: int) -> list[float]:
    """Microseconds of each round trip."""
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        path = str(Path(folder) / "wire")
        echo = multiprocessing.get_context("spawn").Process(
            target=_echo, args=(way, path, size, WARM_UP + count), daemon=True
        )
        if way == KERNEL:
            listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
            listener.bind(path)
            listener.listen()
            echo.start()
            connection, _ = listener.accept()
            times = _blocking(connection.send, lambda: connection.recv(size), size, count)
            connection.close()
            listener.close()
        else:
            context = zmq.Context()
            dealer = context.socket(zmq.DEALER)
            dealer.bind(f"ipc://{path}")
            echo.start()
            dealer.recv()  # there is a connection
            if way == IN_A_LOOP:
                times = trio.run(_waiting, Socket(dealer), size, count)
            else:
                receive = dealer.recv if way == RECEIVING else lambda: _looking(dealer)
                times = _blocking(dealer.send, receive, size, count)
            context.destroy(linger=0)
        echo.join()
    return times


def _blocking(
    send: Callable[[bytes], Any], receive: Callable[[], Any], size: int, count: int
) -> list[float]:
    message, times = os.urandom(size), []
    for _ in range(WARM_UP + count):
        begin = time.perf_counter_ns()
        send(message)
        receive()
        times.append((time.perf_counter_ns() - begin) / 1e3)
    return times[WARM_UP:]


async def _waiting(socket: Socket, size: int, count: int) -> list[float]:
    message, times = os.urandom(size), []
    for _ in range(WARM_UP + count):
        begin = time.perf_counter_ns()
        socket.send(message)
        while socket.receive() is None:
            await socket.wait()
        times.append((time.perf_counter_ns() - begin) / 1e3)
    return times[WARM_UP:]


def _looking(socket: zmq.Socket[bytes]) -> bytes:
    """As the worker: looks for a while, then waits."""
    end = time.perf_counter() + SPIN_SECONDS
    while not has_input(socket) and time.perf_counter() < end:
        pass
    return socket.recv()


def _echo(way: str, path: str, size: int, count: int) -> None:
    """The other process: sends back what it receives."""
    if way == KERNEL:
        connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        connection.connect(path)
        for _ in range(count):
            connection.send(connection.recv(size))
        return
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"ipc://{path}")
    dealer.send(b"hello")
    for _ in range(count):
        dealer.send(dealer.recv() if way == RECEIVING else _looking(dealer))
    context.destroy(linger=1000)


BENCHMARK = Benchmark(Settings, wire)
