"""The document that all nodes are to have, as the gateway changes and tells it.

Renewals of leases tell nodes the document's version, a hash, and nodes pull it: so one that joins
later, or was silent, has the same. Settings, which are adapters and users' MCP servers, are kept in
the cluster's data folder; nodes keep none of them: nothing that was taken back comes again with an
old folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio

from pie_cluster.config import ClusterProblem
from pie_cluster.directory.server import DirectoryServer, check_member
from pie_cluster.wire.links import NodeLinks
from pie_cluster.wire.messages import Document, Setting
from pie_control.errors import Refusal
from pie_control.rpc.params import Method
from pie_control.rpc.session import Session
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.keys import KnownUsers
from pie_py.config.whole_files import write_whole

log = structlog.get_logger("pie.cluster")

ASK_SECONDS = 60.0  # that nodes have: they may have to load an adapter
LOOK_SECONDS = 0.1


class _DocumentParams(msgspec.Struct):
    """Of `document`: null if it has this version."""

    version: int


class ClusterDocument:
    """Keeps the document; one node has to take each change of its settings first."""

    def __init__(
        self,
        folder: Path,
        users: KnownUsers | None,
        directory: DirectoryServer,
        links: NodeLinks,
    ) -> None:
        """Reads what was set before, in the folder of the cluster's data. Users are None on
        loopback. Raises `ClusterProblem` if it cannot be read.
        """
        self._file = folder / "settings-of-nodes.json"
        self._users = users
        self._directory = directory
        self._links = links
        self._changing = trio.Lock()
        settings: list[Setting] = []
        try:
            if self._file.exists():
                settings = msgspec.json.decode(self._file.read_bytes(), type=list[Setting])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClusterProblem(
                f"{self._file} cannot be read: {error}; put a copy back, or move it away and set"
                " adapters and MCP servers again"
            ) from None
        self._become(Document({}, settings))
        self._look()
        self.methods: dict[str, Method] = {"document": (_DocumentParams, self._told)}

    async def run(self) -> None:
        """Follows users' keys until cancelled."""
        while True:
            try:
                self._look()
            except OSError as error:  # what is known counts until then
                log.error("the users' keys cannot be looked at", reason=str(error))
            await trio.sleep(LOOK_SECONDS)

    async def add(self, setting: Setting) -> None:
        """Has every node have something. Raises `Refusal` as a node refuses it; then none has it.
        `busy` if none answers.
        """
        await self._change(setting, setting.method, setting.params, [setting])

    async def remove(self, setting: Setting) -> None:
        """Has no node have it any more. Raises `Refusal` as `add`."""
        await self._change(setting, setting.back, setting.back_params, [])

    async def _change(
        self, setting: Setting, method: str, params: dict[str, Any], instead: list[Setting]
    ) -> None:
        async with self._changing:
            await self._until_all_have()
            await self._try(method, params)
            its = setting.back, setting.back_params
            others = [each for each in self._now.settings if (each.back, each.back_params) != its]
            try:
                write_whole(self._file, msgspec.json.encode(others + instead))
            except OSError as error:
                raise Refusal("out-of-resources", f"it cannot be kept: {error.strerror}") from None
            self._become(Document(self._now.users, others + instead))
            await self._until_all_have()

    async def _try(self, method: str, params: dict[str, Any]) -> None:
        """Asks one node, which has the document, for a change."""
        node = next((node for node in self._directory.nodes() if node.serves), None)
        if node is None:
            raise Refusal("busy", "no node of the cluster serves; try again")
        with trio.move_on_after(ASK_SECONDS):
            try:
                await self._links.ask(node.endpoint, node.public_key, method, **params)
                return
            except RpcError as error:
                raise Refusal(error.code, f"{error.message} (node {node.life})") from None
            except ClientError as error:
                raise Refusal("busy", f"node {node.life} does not answer: {error}") from None
        raise Refusal("busy", f"node {node.life} takes too long; try again")

    def _look(self) -> None:
        """Users may be others than before."""
        users = {} if self._users is None else self._users.look()
        if users != self._now.users:
            self._become(Document(users, self._now.settings))

    def _become(self, now: Document) -> None:
        self._now = now
        self._directory.state.document = now.version

    async def _until_all_have(self) -> None:
        with trio.move_on_after(ASK_SECONDS):
            while self._directory.state.have_old_documents():  # noqa: ASYNC110  no event
                await trio.sleep(LOOK_SECONDS)

    def _told(self, session: Session, asked: _DocumentParams) -> Document | None:
        check_member(session)
        self._look()
        return None if asked.version == self._now.version else self._now
