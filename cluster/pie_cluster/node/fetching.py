"""Programs that this node does not have are taken from the gateway, once, by their hash."""

from __future__ import annotations

import hashlib
import os

import structlog
import trio

from pie_cluster.node.links import GatewayLink
from pie_control.errors import ApiError
from pie_control.programs.store import ProgramStore
from pie_py.wire.rpc import CHUNK_BYTES

log = structlog.get_logger("pie.cluster")


class ProgramFetcher:
    """Takes programs from the gateway."""

    def __init__(self, gateway: GatewayLink, programs: ProgramStore) -> None:
        self._gateway = gateway
        self._programs = programs
        self._under_way: dict[str, trio.Lock] = {}

    async def fetch(self, digest: str, user: str) -> None:
        """Has a program here, under the names that the user gave it.

        Raises:
            Refusal: `not-found` if the cluster does not have it.
            ApiError: `busy` if the gateway is away; `out-of-resources` if the disk is full.
        """
        lock = self._under_way.setdefault(digest, trio.Lock())
        try:
            async with lock:
                if not self._programs.has(digest):
                    await self._take(digest, user)
        finally:
            if not lock.statistics().tasks_waiting:
                self._under_way.pop(digest, None)

    async def _take(self, digest: str, user: str) -> None:
        facts = await self._gateway.ask("program", hash=digest, user=user)
        path = self._programs.temporary_path()
        found = hashlib.sha256()
        try:
            with path.open("wb", buffering=0) as file:
                for offset in range(0, facts["size"], CHUNK_BYTES):
                    part = await self._gateway.ask("program-bytes", hash=digest, offset=offset)
                    found.update(part)
                    file.write(part)
            if found.hexdigest() != digest:
                raise ApiError(
                    "internal", "the gateway has sent another program than was asked for"
                )
            self._programs.adopt(path, digest, facts["name"], facts["kind"], user)
        except OSError as error:
            raise ApiError(
                "out-of-resources", f"the node cannot keep the program: {error.strerror}"
            ) from None
        finally:
            if path.exists():
                os.unlink(path)
        log.info("program fetched", name=facts["name"], hash=digest, bytes=facts["size"])
