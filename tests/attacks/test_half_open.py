"""Connections on which no handshake ends, and the server's descriptors."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import psutil
from attacks.place import VICTIM, place

SAYS = b"async def main(args):\n    return 'done'\n"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE"  # of ZMTP, which goes on after it
MOST = 100  # descriptors that the server may have more than it has at first


def test_handshakes_that_do_not_end_leave_the_server_to_others() -> None:
    """Nor do more of them than the server has descriptors for end it."""
    with place(spare_instances=0) as where:
        at = urlsplit(where.server.endpoint)
        assert at.port is not None
        with where.client(VICTIM) as client:
            program = client.upload(SAYS, "says")
            assert client.launch(program).result(60) == "done"
            control = psutil.Process(where.server.process.pid)
            control.rlimit(psutil.RLIMIT_NOFILE, (control.num_fds() + MOST,) * 2)
            for count in (MOST // 2, 3 * MOST):
                with ExitStack() as stack:
                    for number in range(count):
                        one = stack.enter_context(socket.socket())
                        one.settimeout(1.0)
                        with suppress(OSError):  # the last ones wait to be accepted
                            one.connect(("127.0.0.1", at.port))
                            one.sendall(GREETING[: number % len(GREETING)])
                            continue
                        break
                    assert client.launch(program).result(60) == "done"
        with where.client(VICTIM) as client:  # by a new connection
            assert client.launch(program).result(60) == "done"
        assert not where.problems()
