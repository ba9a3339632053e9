"""Settings at the gateway that hold on every node: adapters, and users' MCP servers.

They are one document, which the gateway keeps in the cluster's data folder. Renewals of leases tell
nodes its version, a hash, and nodes pull it: so one that joins later, or was silent, has the same.
Nodes keep none of it themselves: nothing that was taken back comes again with an old folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio

from pie_cluster.directory.server import DirectoryServer
from pie_cluster.node.links import NodeLinks
from pie_cluster.wire.messages import Setting, adapter, mcp_server, version_of
from pie_cluster.wire.requests import check_member
from pie_control.data_folder import SettingsFolder
from pie_control.errors import Refusal
from pie_control.rpc.params import Method
from pie_control.rpc.session import Session
from pie_py.client.errors import ClientError, RpcError

ASK_SECONDS = 60.0  # that nodes have: they may have to load an adapter
LOOK_SECONDS = 0.1


class _NoParams(msgspec.Struct):
    """Of `settings`: the document."""


class ClusterSettings:
    """Changes the document, of which one node has to take each change first."""

    def __init__(self, folder: Path, directory: DirectoryServer, links: NodeLinks) -> None:
        """Reads what was set before, in the folder of the cluster's data."""
        self._adapters = SettingsFolder(folder / "adapters", "model", "name", "folder")
        self._servers = SettingsFolder(folder / "mcp", "user", "name", "fields")
        self._directory = directory
        self._links = links
        self._changing = trio.Lock()
        self._tell()
        self.methods: dict[str, Method] = {"settings": (_NoParams, self._told)}

    async def load_adapter(self, model: str, name: str, folder: str) -> None:
        """Has every node load an adapter. Raises `Refusal` as a node refuses it; then none has it.
        `busy` if none answers.
        """
        async with self._changing:
            setting = adapter(model, name, folder)
            await self._try(setting.method, setting.params)
            self._adapters.put(model, name, model=model, name=name, folder=folder)
            await self._bring()

    async def unload_adapter(self, model: str, name: str) -> None:
        """Has every node unload an adapter. Raises `Refusal` as `load_adapter`."""
        async with self._changing:
            setting = adapter(model, name, "")
            await self._try(setting.back, setting.back_params)
            self._adapters.remove(model, name)
            await self._bring()

    async def register_mcp(self, user: str, name: str, fields: Mapping[str, Any]) -> None:
        """Registers an MCP server of a user on every node. Raises `Refusal` as `load_adapter`."""
        async with self._changing:
            setting = mcp_server(user, name, dict(fields))
            await self._try(setting.method, setting.params)
            self._servers.put(user, name, user=user, name=name, fields=dict(fields))
            await self._bring()

    async def unregister_mcp(self, user: str, name: str) -> None:
        """Has every node forget an MCP server of a user. Raises `Refusal` as `load_adapter`."""
        async with self._changing:
            setting = mcp_server(user, name, {})
            await self._try(setting.back, setting.back_params)
            self._servers.remove(user, name)
            await self._bring()

    async def _try(self, method: str, asked: Mapping[str, Any]) -> None:
        """Asks one node, which has the document, for a change."""
        await self._until_all_have()
        node = next((node for node in self._directory.nodes() if node.serves), None)
        if node is None:
            raise Refusal("busy", "no node of the cluster serves; try again")
        with trio.move_on_after(ASK_SECONDS):
            try:
                await self._links.ask(node.endpoint, node.public_key, method, **asked)
                return
            except RpcError as error:
                raise Refusal(error.code, f"{error.message} (node {node.life})") from None
            except ClientError as error:
                raise Refusal("busy", f"node {node.life} does not answer: {error}") from None
        raise Refusal("busy", f"node {node.life} takes too long; try again")

    async def _bring(self) -> None:
        """The document is another one: waits until nodes have it, if they can."""
        self._tell()
        await self._until_all_have()

    def _tell(self) -> None:
        self._directory.settings = version_of(self._document())

    async def _until_all_have(self) -> None:
        with trio.move_on_after(ASK_SECONDS):
            while self._directory.have_old_settings():  # noqa: ASYNC110  no event
                await trio.sleep(LOOK_SECONDS)

    def _document(self) -> list[Setting]:
        adapters = [adapter(**each) for each in self._adapters.all()]
        return adapters + [mcp_server(**each) for each in self._servers.all()]

    def _told(self, session: Session, asked: _NoParams) -> Any:
        check_member(session)
        return [msgspec.structs.asdict(each) for each in self._document()]
