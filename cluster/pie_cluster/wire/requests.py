"""Requests of a member to another one, by the protocol that clients speak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from pie_cluster.config import MemberConfig
from pie_control.errors import ApiError
from pie_control.rpc.session import Session
from pie_py.client.connection import Connection
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import LOCAL_USER, ClientKey

PATIENCE_SECONDS = 8.0  # a gateway that was killed is back sooner
MEMBER = "member"  # what they call themselves; they have the rights of the operator


@asynccontextmanager
async def connected(endpoint: str, key: ClientKey | None) -> AsyncIterator[Connection]:
    """A connection for as long as the context; what is raised within comes out as it is.

    Whether something answers there shows with the first request.
    """
    connection = Connection(parse_endpoint(endpoint), key, PATIENCE_SECONDS)
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        try:
            problem = await connection.ready()
            if problem is not None:
                raise problem
            yield connection
        except Exception as error:  # noqa: BLE001  the nursery would wrap it
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


def check_member(session: Session) -> None:
    """Refuses who is no member of the cluster. On loopback every client is the operator, who may do
    what members do. Raises `ApiError`: `permission-denied`.
    """
    if session.user != LOCAL_USER:
        raise ApiError("permission-denied", "only nodes of the cluster may ask for this")


def member_key(member: MemberConfig, server: str) -> ClientKey | None:
    """The key by which a member connects to a gateway or node of a public key; None on loopback.
    Raises `KeyProblem` if the members' keys cannot be read.
    """
    pair = member.pair()
    return None if pair is None else ClientKey(MEMBER, pair.public, pair.secret, server)
