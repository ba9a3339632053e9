"""Connections of clients that reach the gateway's address alone, each passed on to one node.

A client asks the gateway for a ticket of a node's life, connects here, and shows it. From then on
it speaks with the node as if it had connected there, encrypted by the node's key, and the gateway
moves bytes that it cannot read. It keeps nothing: killed and started again, it knows its tickets by
their code, and the client, which connects again, resumes its session at the node.
"""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

import structlog
import trio

from pie_cluster.directory.server import DirectoryServer
from pie_cluster.gateway.splicing import Splicing
from pie_cluster.gateway.tickets import (
    SIGNATURE_BYTES,
    TICKET_BYTES,
    BadTicket,
    NoTicket,
    Tickets,
    parted,
)
from pie_control.errors import ApiError, Refusal
from pie_control.rpc.endpoint import EndpointRefused
from pie_py.config.child import allow_open_files
from pie_py.config.endpoint import BadEndpoint, parse_endpoint
from pie_py.config.keys import KeyStore
from pie_py.config.limits import Quotas
from pie_py.config.server import ServerConfig

log = structlog.get_logger("pie.cluster")

MOST_PASSAGES = 8192
MOST_FILES = 4 * MOST_PASSAGES  # open at once: each passage has two, its client's session one
MOST_WITHOUT_TICKET = 1024  # connections that have shown none yet
TICKET_SECONDS = 5.0  # in which they must
BACKLOG = 1024  # after a gateway's restart all clients come at once
MOST_BEGUN = SIGNATURE_BYTES + TICKET_BYTES + 2  # bytes, to be read before the ticket is known
SILENT_MS = 60_000  # after which a side that takes nothing is gone
OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0),  # trio's 16 KiB hold up big messages
)


class Relay:
    """Gives out tickets, and connects who comes with one."""

    def __init__(self, directory: DirectoryServer, config: ServerConfig, relay_port: int) -> None:
        """Nothing listens before `run`, which takes a free port if `relay_port` is 0. Raises
        `KeyProblem` if the gateway's key cannot be read.
        """
        self._directory = directory
        self._endpoint = parse_endpoint(config.endpoint)
        self._port = relay_port
        self._tickets = Tickets(KeyStore(config.data_folder).server_pair().secret)
        self._quotas = Quotas(config.quota, config.quotas)
        self._splicing = Splicing()
        self._without_ticket = 0
        self._of_user: Counter[str] = Counter()  # passages
        allow_open_files(MOST_FILES)

    def ticket(self, life: str, user: str) -> dict[str, Any]:
        """What a user's client needs to be connected to a life. Raises `ApiError`: `busy` if it
        would not be connected now.
        """
        self._check_room(user)
        return {"port": self._port, "ticket": self._tickets.make(life, user)}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Passes on until cancelled. Raises `EndpointRefused` if the port cannot be listened at."""
        listener = self._listen()
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, self._splicing.run)
            try:
                task_status.started()
                await trio.serve_listeners(self._serve, [listener])
            finally:
                self._splicing.stop()

    def _listen(self) -> trio.SocketListener:
        host = self._endpoint.host
        assert host is not None, "other machines reach a gateway, or may"
        family = socket.AF_INET6 if self._endpoint.is_ipv6 else socket.AF_INET
        try:
            listener = socket.create_server(
                (host.strip("[]"), self._port), family=family, backlog=BACKLOG
            )
        except OSError as error:
            why = (error.strerror or str(error)).partition(" (")[0]
            raise EndpointRefused(
                f"the relay cannot listen on {host}:{self._port}: {why}; choose another relay_port"
            ) from None
        self._port = listener.getsockname()[1]
        return trio.SocketListener(trio.socket.from_stdlib_socket(listener))

    async def _serve(self, client: trio.SocketStream) -> None:
        """One connection, until its bytes are the thread's to carry, or it is refused."""
        if self._without_ticket >= MOST_WITHOUT_TICKET:
            return
        self._without_ticket += 1
        try:
            with trio.fail_after(TICKET_SECONDS):
                ticket, begun = await _shown(client)
            life, user = self._tickets.read(ticket)
        except (NoTicket, BadTicket, trio.TooSlowError, trio.BrokenResourceError) as error:
            log.warning("refused to relay", reason=_reason(error))
            return
        finally:
            self._without_ticket -= 1
        try:
            await self._connect(client, begun, life, user)
        except (ApiError, Refusal, BadEndpoint, OSError, trio.TooSlowError) as error:
            log.info("cannot relay", life=life, user=user, reason=_reason(error))
            # ZeroMQ would try again after 0.05 s.
            await trio.sleep(1.0)
        except trio.BrokenResourceError:  # the node has gone meanwhile
            return

    async def _connect(self, client: trio.SocketStream, begun: bytes, life: str, user: str) -> None:
        self._check_room(user)
        self._of_user[user] += 1
        with ExitStack() as stack:
            stack.callback(self._forget, user)
            async with await self._reach(life) as node:
                for stream, option in product((client, node), OPTIONS):
                    stream.setsockopt(*option)
                await node.send_all(begun)
                ended = partial(self._token.run_sync_soon, self._forget, user)
                self._splicing.add(_taken(client), _taken(node), ended)
                stack.pop_all()

    async def _reach(self, life: str) -> trio.SocketStream:
        endpoint = parse_endpoint((await self._directory.where(life)).endpoint)
        if endpoint.host is None:
            raise BadEndpoint(f"{endpoint.text} is reached from its own machine alone")
        port = int(endpoint.text.rpartition(":")[2])
        with trio.fail_after(5.0):
            return await trio.open_tcp_stream(endpoint.host.strip("[]"), port)

    def _check_room(self, user: str) -> None:
        ours, all_of_them = self._of_user[user], self._of_user.total()
        if ours >= self._quotas.most(user, MOST_PASSAGES) or all_of_them >= MOST_PASSAGES:
            raise ApiError(
                "busy",
                f"{ours} of your connections are relayed, and {all_of_them} in all: as many as may"
                " be; use fewer, or try later",
            )

    def _forget(self, user: str) -> None:
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]


async def _shown(client: trio.SocketStream) -> tuple[str, bytes]:
    """The ticket that a client shows, and what it has said to the node."""
    begun = b""
    while (found := parted(begun)) is None:
        part = await client.receive_some(MOST_BEGUN - len(begun))
        if not part:
            raise NoTicket("it has ended")
        begun += bytes(part)
    return found


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _taken(stream: trio.SocketStream) -> socket.socket:
    """A stream's socket, which is no longer the stream's."""
    taken = socket.socket(fileno=stream.socket.detach())
    taken.setblocking(False)
    return taken
