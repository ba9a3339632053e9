"""Methods of a cluster's gateway.

It keeps programs, says where launches go, and tells of all nodes at once. What belongs to one
instance is asked of its node.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import trio

from pie_cluster.directory.directory import PlacementRequest
from pie_cluster.directory.server import DirectoryServer, check_member
from pie_cluster.gateway.document import ClusterDocument
from pie_cluster.wire.links import NodeLinks
from pie_cluster.wire.messages import NodeFacts, Setting
from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError, Refusal
from pie_control.programs.store import Program, ProgramStore
from pie_control.rpc.describe import describe_program
from pie_control.rpc.params import Handlers
from pie_control.rpc.program_requests import PROGRAM_BYTES, ProgramRequests, check_unused
from pie_control.rpc.session import Session
from pie_control.rpc.sessions import Sessions
from pie_control.shares import Shares
from pie_py import __version__
from pie_py.client.errors import ClientError
from pie_py.config.keys import LOCAL_USER
from pie_py.config.server import ServerConfig
from pie_py.config.shipped_files import contract_version
from pie_py.wire import methods
from pie_py.wire.rpc import CHUNK_BYTES, PROTOCOL, Request

if TYPE_CHECKING:
    from pie_cluster.gateway.journals import DurableInstances  # needs psycopg

log = structlog.get_logger("pie.cluster")

NODE_SECONDS = 3.0  # that one node has for its part of an answer


class GatewayMethods:
    """Answers requests. A method that has to wait is a coroutine function."""

    def __init__(
        self,
        config: ServerConfig,
        shares: Shares,
        programs: ProgramStore,
        directory: DirectoryServer,
        links: NodeLinks,
        confined: ConfinedPool,
        prepare: Callable[[Program], Awaitable[object]],
        durable: DurableInstances | None,
        document: ClusterDocument,
        clock: Callable[[], float],
        sessions: Sessions,
    ) -> None:
        """Takes its parts. `confined` checks Python sources, and `prepare` components, by compiling
        them; `durable` is of instances that go on elsewhere, where there is a database.
        """
        self._config = config
        self._programs = programs
        self._directory = directory
        self._links = links
        self._durable = durable
        self._document = document
        self._clock = clock
        self._started = clock()
        self._kept = ProgramRequests(config, shares, programs, prepare, confined)
        known = methods.OF_ALL_NODES + methods.OF_GATEWAYS
        self._handlers = Handlers(
            known, self._kept, self, more={**directory.methods, **document.methods}
        )

    def answer(self, session: Session, request: Request) -> Any:
        """Does what a request asks; what may have to wait is returned as a coroutine. Raises
        `ApiError` or `ProgramRejected`: the error that the client gets.
        """
        if request.method in map(methods.name_of, methods.OF_INSTANCES):
            raise ApiError(
                "unsupported",
                f"{request.method}: this is a cluster's gateway, whose clients talk to the nodes"
                " themselves: use a client of pie_py that knows clusters",
            )
        return self._handlers.answer(session, request)

    def forget(self, session: Session) -> None:
        """A session has ended: its unfinished uploads go."""
        self._kept.forget(session)

    # Where things are

    async def _place(self, session: Session, asked: methods.Place) -> Any:
        program = self._programs.find(asked.program, session.user)
        request = PlacementRequest(
            session.user, program.hash, asked.near, asked.avoid, asked.prefixes
        )
        there = await self._directory.place(request)
        return {**there.described(), "hash": program.hash, "program": program.name}

    async def _where(self, session: Session, asked: methods.Where) -> Any:
        try:
            if asked.lost:
                raise Refusal("node-lost", f"{asked.instance} is not there any more")
            there = await self._directory.where(asked.instance, broken=asked.broken)
        except Refusal as refusal:
            if refusal.code != "node-lost" or "@" not in asked.instance or self._durable is None:
                raise
            there = await self._durable.where(asked.instance, session.scope, refusal)
        return there.described()

    def _nodes(self, session: Session, asked: methods.Nodes) -> Any:
        return [msgspec.structs.asdict(node) for node in self._all()]

    def _drain(self, session: Session, asked: methods.Drain) -> Any:
        session.check_admin(self._config.admins)
        self._directory.drain(asked.node, asked.seconds, again=asked.again)

    def _all(self) -> list[NodeFacts]:
        nodes = self._directory.nodes()
        self._links.keep_only({node.endpoint for node in nodes})
        return nodes

    # Of all nodes

    def _load_model(self, session: Session, asked: methods.LoadModel | methods.UnloadModel) -> Any:
        raise ApiError("invalid-argument", f"{asked.model}: models of a cluster stay as they are")

    _unload_model = _pause_model = _resume_model = _update_weights = _load_model

    async def _ask_all(self, method: str, **asked: Any) -> dict[str, Any]:
        """The answers of the nodes that answer, by node."""
        nodes = [node for node in self._all() if node.serves]
        found: dict[str, Any] = {}

        async def ask(node: NodeFacts) -> None:
            try:
                with trio.fail_after(NODE_SECONDS):
                    link = node.endpoint, node.public_key
                    found[node.node] = await self._links.ask(*link, method, **asked)
            except (ClientError, trio.TooSlowError) as error:
                log.warning("a node does not answer", node=node.node, reason=str(error))

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        return {node.node: found[node.node] for node in nodes if node.node in found}

    async def _server(self, session: Session, asked: methods.Server) -> Any:
        nodes = self._all()
        told = await self._ask_all("server")
        return {
            "version": __version__,
            "contract": contract_version(),
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "uptime": self._clock() - self._started,
            "endpoint": self._config.endpoint,
            "user": session.user,
            "models": sorted({model for one in told.values() for model in one["models"]}),
            "instances": sum(one["instances"] for one in told.values()),
            "max_instances": sum(one["max_instances"] for one in told.values()),
            "launched": sum(one["launched"] for one in told.values()),
            "limits": self._config.limits.model_dump(mode="json"),
            "nodes": [msgspec.structs.asdict(node) for node in nodes],
        }

    async def _models(self, session: Session, asked: methods.Models) -> Any:
        models: list[dict[str, Any]] = next(iter((await self._ask_all("models")).values()), [])
        hidden = () if session.user == LOCAL_USER else ("folder",)
        return [{k: v for k, v in model.items() if k not in hidden} for model in models]

    async def _instances(self, session: Session, asked: methods.Instances) -> Any:
        scope = session.scope
        if asked.users:
            session.check_admin(self._config.admins)
            scope = None
        told = await self._ask_all("instances", all=asked.all)
        found = [one for instances in told.values() for one in instances]
        found.sort(key=lambda one: one["created_ns"])
        return [one for one in found if scope is None or one["user"] == scope]

    async def _stats(self, session: Session, asked: methods.Stats) -> Any:
        told = await self._ask_all("stats")
        return {f"{model}@{node}": one for node, of in told.items() for model, one in of.items()}

    async def _of_users(
        self, session: Session, asked: methods.Quota | methods.Usage, method: str, **more: Any
    ) -> dict[str, Any]:
        """The nodes' counts of the users that are asked for, by node."""
        if asked.users or asked.of:
            session.check_admin(self._config.admins)
        of = "" if asked.users else asked.of or session.user
        return await self._ask_all(method, users=asked.users, of=of, **more)

    async def _quota(self, session: Session, asked: methods.Quota) -> Any:
        """Each node counts for itself: its kinds have its name before them."""
        found: dict[str, dict[str, Any]] = {}
        for node, users in (await self._of_users(session, asked, "quota")).items():
            for told in users:
                user = found.setdefault(told["user"], {**told, "kinds": []})
                user["kinds"] += [
                    {**kind, "kind": f"{node}: {kind['kind']}"}
                    for kind in told["kinds"]
                    if kind["kind"] != PROGRAM_BYTES
                ]
        for name, user in found.items():
            user["kinds"].append(self._kept.bytes_of(name))
        return [found[user] for user in sorted(found)]

    async def _usage(self, session: Session, asked: methods.Usage) -> Any:
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        told = await self._of_users(session, asked, "usage", days=asked.days)
        for row in (row for rows in told.values() for row in rows):
            key = tuple(value for value in row.values() if isinstance(value, str))
            one = found.setdefault(key, dict.fromkeys(row, 0) | {"day": row["day"]})
            for name, value in row.items():
                one[name] = value if isinstance(value, str) else one[name] + value
        return [found[key] for key in sorted(found)]

    # What all nodes have

    async def _adapters(self, session: Session, asked: methods.Adapters) -> Any:
        told = list((await self._ask_all("adapters")).values())
        return [one for one in told[0] if all(one in other for other in told)] if told else []

    async def _load_adapter(self, session: Session, asked: methods.LoadAdapter) -> None:
        session.check_admin(self._config.admins)
        if asked.hash:
            raise Refusal(
                "unsupported",
                "a cluster takes no uploaded adapters yet: load one from a folder that every"
                " machine has",
            )
        await self._document.add(_adapter(asked.model, asked.name, asked.folder))

    async def _unload_adapter(self, session: Session, asked: methods.UnloadAdapter) -> None:
        session.check_admin(self._config.admins)
        await self._document.remove(_adapter(asked.model, asked.name))

    async def _mcp_servers(self, session: Session, asked: methods.McpServers) -> Any:
        user = session.acts_for(asked.user, self._config.admins)
        return next(iter((await self._ask_all("mcp-servers", user=user)).values()), [])

    async def _register_mcp(self, session: Session, asked: methods.RegisterMcp) -> None:
        user = session.acts_for(asked.user, self._config.admins)
        await self._document.add(_mcp_server(user, asked.name, msgspec.structs.asdict(asked)))

    async def _unregister_mcp(self, session: Session, asked: methods.UnregisterMcp) -> None:
        user = session.acts_for(asked.user, self._config.admins)
        await self._document.remove(_mcp_server(user, asked.name, {}))

    # Programs

    async def _remove_program(self, session: Session, asked: methods.RemoveProgram) -> Any:
        programs = self._kept.to_remove(session, asked)
        hashes = {program.hash for program in programs}
        nodes = self._all()
        told = await self._ask_all("instances")
        running = {
            one["id"]: name
            for name, instances in told.items()
            for one in instances
            if one["program_hash"] in hashes and one["user"] == session.user
        }
        check_unused(asked, list(running))
        for node in nodes:
            for instance in [one for one, name in running.items() if name == node.node]:
                link = node.endpoint, node.public_key
                try:
                    with trio.fail_after(NODE_SECONDS):
                        await self._links.ask(*link, "kill", instance=instance)
                except (ClientError, trio.TooSlowError) as error:
                    raise ApiError(
                        "busy",
                        f"{instance} runs it on node {node.node}, which does not end it:"
                        f" {str(error) or 'it does not answer'}; try again once the node answers",
                    ) from None
        return self._kept.remove(programs)

    def _program(self, session: Session, asked: methods.Program) -> Any:
        check_member(session)
        return describe_program(self._programs.find(asked.hash, asked.user))

    def _program_bytes(self, session: Session, asked: methods.ProgramBytes) -> Any:
        check_member(session)
        program = self._programs.find(asked.hash, asked.user)
        with Path(program.path).open("rb") as file:
            file.seek(asked.offset)
            return file.read(CHUNK_BYTES)


def _adapter(model: str, name: str, folder: str = "") -> Setting:
    """An adapter, in a folder that every node's machine has."""
    place = {"model": model, "name": name}
    return Setting("load-adapter", {**place, "folder": folder}, "unload-adapter", place)


def _mcp_server(user: str, name: str, fields: dict[str, Any]) -> Setting:
    """An MCP server of a user; `fields` are those of `register-mcp`."""
    whose = {"user": user, "name": name}
    return Setting("register-mcp", {**fields, **whose}, "unregister-mcp", whose)
