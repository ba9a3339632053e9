"""Settings at the gateway that hold on every node: adapters, and users' MCP servers.

The gateway keeps it in the cluster's data folder, as one server does in its own. Each node is told
when it is set, and a life that the gateway has not told yet, soon after it has joined. Nodes keep
none of it themselves, so that nothing that was taken back comes again with an old folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import structlog
import trio

from pie_cluster.directory.server import DirectoryServer
from pie_cluster.node.links import NodeLinks
from pie_cluster.wire.messages import NodeFacts
from pie_control.data_folder import SettingsFolder
from pie_control.errors import Refusal
from pie_py.client.errors import ClientError, RpcError

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 2.0  # between two looks for nodes that have joined
ASK_SECONDS = 60.0  # that a node has: it may have to load an adapter

Key: TypeAlias = tuple[str, str, str]  # what it is, of which model or user, its name
Lives: TypeAlias = dict[str, NodeFacts]


@dataclass(frozen=True)
class Setting:
    """What a node is asked so that it has something, and so that it has it no more."""

    method: str
    params: Mapping[str, Any]
    back: str
    back_params: Mapping[str, Any]


def adapter(model: str, name: str, folder: str) -> Setting:
    """An adapter, in a folder that every node's machine has."""
    place = {"model": model, "name": name}
    return Setting("load-adapter", {**place, "folder": folder}, "unload-adapter", place)


def mcp_server(user: str, name: str, fields: Mapping[str, Any]) -> Setting:
    """An MCP server of a user; `fields` are those of `register-mcp`."""
    whose = {"user": user, "name": name}
    return Setting("register-mcp", {**fields, **whose}, "unregister-mcp", whose)


class ClusterSettings:
    """Brings nodes to what is set."""

    def __init__(self, folder: Path, directory: DirectoryServer, links: NodeLinks) -> None:
        """Reads what was set before, in the folder of the cluster's data."""
        self._adapters = SettingsFolder(folder / "adapters", "model", "name", "folder")
        self._servers = SettingsFolder(folder / "mcp", "user", "name", "fields")
        self._directory = directory
        self._links = links
        self._told: dict[str, dict[Key, Setting]] = {}  # by life, as long as it is one
        self._changing = trio.Lock()
        self._set: dict[Key, Setting] = {}
        for one in self._adapters.all():
            self._set["adapter", one["model"], one["name"]] = adapter(**one)
        for one in self._servers.all():
            self._set["mcp", one["user"], one["name"]] = mcp_server(**one)

    async def run(self) -> None:
        """Tells nodes that have joined, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if not self._set and not any(self._told.values()):
                continue
            async with self._changing:
                await self._bring(self._nodes())

    async def load_adapter(self, model: str, name: str, folder: str) -> None:
        """Loads an adapter on every node. Raises `Refusal` as a node refuses it; then none has it.
        `busy` if none answers.
        """
        setting = adapter(model, name, folder)
        await self._change(("adapter", model, name), setting)
        self._adapters.put(model, name, model=model, name=name, folder=folder)

    async def unload_adapter(self, model: str, name: str) -> None:
        """Unloads an adapter from every node. Raises `Refusal` as a node refuses it; then all still
        have it.
        """
        await self._take_back(("adapter", model, name), adapter(model, name, ""))
        self._adapters.remove(model, name)

    async def register_mcp(self, user: str, name: str, fields: Mapping[str, Any]) -> None:
        """Registers an MCP server of a user on every node. Raises `Refusal` as `load_adapter`."""
        await self._change(("mcp", user, name), mcp_server(user, name, fields))
        self._servers.put(user, name, user=user, name=name, fields=dict(fields))

    async def unregister_mcp(self, user: str, name: str) -> None:
        """Has every node forget an MCP server of a user. Raises `Refusal` as `unload_adapter`."""
        await self._take_back(("mcp", user, name), mcp_server(user, name, {}))
        self._servers.remove(user, name)

    # Changes

    async def _change(self, key: Key, setting: Setting) -> None:
        """Has all nodes have it, or none."""
        async with self._changing:
            if key in self._set:
                raise Refusal("already-exists", f"{key[2]!r} is there already")
            nodes = self._some()
            errors = await self._ask(nodes, setting.method, setting.params)
            took = {life: node for life, node in nodes.items() if life not in errors}
            error = _first(errors, "already-exists" if took else None)
            if error is not None:
                await self._ask(took, setting.back, setting.back_params)
                raise error
            self._set[key] = setting
            for life in nodes:
                # One that was silent may have an earlier setting, which the next look takes back.
                self._told.setdefault(life, {}).setdefault(key, setting)

    async def _take_back(self, key: Key, setting: Setting) -> None:
        """Has no node have it, or all as before."""
        async with self._changing:
            nodes = self._some()
            errors = await self._ask(nodes, setting.back, setting.back_params)
            took = {life: node for life, node in nodes.items() if life not in errors}
            error = _first(errors, "not-found" if took or key in self._set else None)
            if error is not None:
                if key in self._set:
                    await self._ask(took, self._set[key].method, self._set[key].params)
                raise error
            self._set.pop(key, None)
            for life in nodes:
                self._told.get(life, {}).pop(key, None)

    async def _bring(self, nodes: Lives) -> None:
        """Tells each life that is not silent what is new; lives that are gone are forgotten.

        One that is silent may come back with what was taken from others meanwhile.
        """
        self._told = {life: self._told.get(life, {}) for life in nodes}
        for life, node in _ready(nodes).items():
            one, told = {life: node}, self._told[life]
            for key, setting in list(told.items()):
                if self._set.get(key) != setting:
                    errors = await self._ask(one, setting.back, setting.back_params)
                    if _first(errors, "not-found") is None:
                        del told[key]
            for key, setting in self._set.items():
                if key in told:
                    continue
                errors = await self._ask(one, setting.method, setting.params)
                error = _first(errors, "already-exists")
                if error is None or error.code not in ("busy", "worker-lost"):
                    told[key] = setting  # what it refuses it would refuse again
                if error is not None:
                    log.error("a node has less than others", node=life, reason=error.message)

    def _some(self) -> Lives:
        """The nodes to ask, of which there must be one that can refuse."""
        nodes = _ready(self._nodes())
        if not nodes:
            raise Refusal("busy", "no node of the cluster serves; try again")
        return nodes

    def _nodes(self) -> Lives:
        """All that the directory lists, in whatever state."""
        return {node.life: node for node in self._directory.nodes()}

    async def _ask(self, nodes: Lives, method: str, asked: Mapping[str, Any]) -> dict[str, Refusal]:
        """What nodes refuse, by life; nothing of those that have done it."""
        answers = await self._links.ask_each(nodes.values(), ASK_SECONDS, method, **asked)
        errors: dict[str, Refusal] = {}
        for life, answer in answers.items():
            match answer:
                case RpcError() as error:
                    errors[life] = Refusal(error.code, f"{error.message} (node {life})")
                case ClientError() as error:
                    errors[life] = Refusal("busy", f"node {life} does not answer: {error}")
        return errors


def _ready(nodes: Lives) -> Lives:
    return {life: node for life, node in nodes.items() if node.serves}


def _first(errors: dict[str, Refusal], harmless: str | None) -> Refusal | None:
    """The first error, but for those of a code that does no harm."""
    return next((error for error in errors.values() if error.code != harmless), None)
