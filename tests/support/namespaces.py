"""Machines of one network, as far as the kernel tells: network namespaces joined by a bridge.

The bridge is in a namespace as well, so nothing of it is seen outside, and no address outside is
used. A function runs "on a machine" in a thread of that namespace; threads and processes that it
starts are there, too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

CLONE_NEWNET = 0x40000000  # of setns(2)
ETH_P_ALL = 3
PACKET_BYTES = 1 << 17

Value = TypeVar("Value")


def missing() -> str | None:
    """Why no namespaces can be made here; None if they can."""
    if shutil.which("ip") is None:
        return "there is no `ip`: apt-get install iproute2"
    name = f"pie-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Network:
    """Machines by name, with the addresses 10.77.0.1, 10.77.0.2 and so on, or others."""

    def __init__(self, machines: Sequence[str], network: str = "10.77.0") -> None:
        """Makes nothing yet."""
        self.addresses = {name: f"{network}.{n}" for n, name in enumerate(machines, 1)}
        self._prefix = f"pie-{os.getpid()}-"
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def __enter__(self) -> Self:
        try:
            self._make("switch")
            _ip("-n", self._prefix + "switch", "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._prefix + "switch", "link", "set", "bridge", "up")
            for name, address in self.addresses.items():
                self._connect(name, address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name, thread in self._threads.items():
            thread.shutdown()
            with suppress(subprocess.CalledProcessError):
                for pid in _ip(
                    "netns", "pids", self._prefix + name
                ).split():  # nothing, if all went well
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                _ip("netns", "del", self._prefix + name)

    def on(self, machine: str, function: Callable[..., Value], *args: Any, **named: Any) -> Value:
        """Runs a function on a machine."""
        return self._threads[machine].submit(function, *args, **named).result()

    def cut(self, machine: str) -> None:
        """From now on a machine reaches nothing, and nothing reaches it."""
        _ip("-n", self._prefix + "switch", "link", "set", f"to-{machine}", "down")

    def mend(self, machine: str) -> None:
        """Its cable is back."""
        _ip("-n", self._prefix + "switch", "link", "set", f"to-{machine}", "up")

    def _connect(self, name: str, address: str) -> None:
        self._make(name)
        own, switch = self._prefix + name, self._prefix + "switch"
        pair = ("link", "add", f"to-{name}", "netns", switch, "type", "veth")
        _ip(*pair, "peer", "name", "eth0", "netns", own)
        _ip("-n", switch, "link", "set", f"to-{name}", "master", "bridge", "up")
        _ip("-n", own, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", own, "link", "set", "eth0", "up")
        _ip("-n", own, "link", "set", "lo", "up")

    def _make(self, name: str) -> None:
        _ip("netns", "add", self._prefix + name)
        path = Path("/run/netns") / (self._prefix + name)
        self._threads[name] = ThreadPoolExecutor(1, initializer=_enter, initargs=(path,))


class Sniffer:
    """Reads all that passes the bridge, and counts packets with a text in the clear."""

    def __init__(self, network: Network, text: bytes) -> None:
        """Reads from now on."""
        self.packets = 0
        self.found = 0
        self._text = text
        self._socket = network.on("switch", _raw)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Reads no more."""
        self._socket.close()
        self._thread.join()

    def _read(self) -> None:
        while True:
            try:
                packet = self._socket.recv(PACKET_BYTES)
            except TimeoutError:
                continue
            except OSError:
                return
            self.packets += 1
            self.found += self._text in packet


def _raw() -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.settimeout(0.2)
    return raw


def _enter(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _ip(*args: str) -> str:
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True).stdout
