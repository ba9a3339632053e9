"""What a client can ask for: one method a request, named as in `docs/protocol.md`."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import trio

from pie_control.api.runtime import traits_of
from pie_control.errors import ApiError
from pie_control.host import Host
from pie_control.instances.instance import Instance, State
from pie_control.instances.mailbox import Mailbox
from pie_control.instances.registry import check_arguments
from pie_control.programs.source_check import check_source
from pie_control.programs.store import Program, ProgramStore, kind_of
from pie_control.rpc.describe import (
    describe_instance,
    describe_log,
    describe_model,
    describe_program,
    describe_stats,
)
from pie_control.rpc.outlet import Outlet
from pie_control.rpc.params import Params
from pie_control.rpc.session import MAX_UPLOADS, Session, Upload
from pie_py import __version__
from pie_py.config.server import ServerConfig
from pie_py.wire.contract import contract_version
from pie_py.wire.rpc import CHUNK_BYTES, LOCAL_USER, PROTOCOL

Answer: TypeAlias = Any  # what msgpack can carry
Method: TypeAlias = Callable[[Session, Params], Answer | Awaitable[Answer]]

DEFAULT_WINDOW = 256


class Requests:
    """Answers requests. A method that may have to wait is a coroutine function."""

    def __init__(
        self,
        config: ServerConfig,
        host: Host,
        programs: ProgramStore,
        outlet_of: Callable[[Instance], Outlet],
        take_from: Callable[[Session, Instance], None],
    ) -> None:
        """Takes how to find an instance's stream, and how to take it from the session that reads it."""
        self._config = config
        self._host = host
        self._programs = programs
        self._outlet_of = outlet_of
        self._take_from = take_from
        self._started = time.monotonic()
        self.methods: dict[str, Method] = {
            "server": self._server,
            "models": self._models,
            "programs": self._list_programs,
            "instances": self._instances,
            "stats": self._stats,
            "has": self._has,
            "upload": self._upload,
            "upload-chunk": self._upload_chunk,
            "launch": self._launch,
            "attach": self._attach,
            "detach": self._detach,
            "send": self._send,
            "result": self._result,
            "kill": self._kill,
            "logs": self._logs,
            "adapters": self._adapters,
            "load-adapter": self._load_adapter,
            "unload-adapter": self._unload_adapter,
            "mcp-servers": self._mcp_servers,
            "register-mcp": self._register_mcp,
            "unregister-mcp": self._unregister_mcp,
        }

    # Queries

    def _server(self, session: Session, params: Params) -> Answer:
        lifecycle = self._host.lifecycle
        return {
            "version": __version__,
            "contract": contract_version(),
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "uptime": time.monotonic() - self._started,
            "endpoint": self._config.endpoint,
            "user": session.user,
            "models": list(self._host.services),
            "instances": lifecycle.live_count,
            "max_instances": self._config.max_instances,
            "launched": lifecycle.launched,
            "limits": self._config.limits.model_dump(mode="json"),
        }

    def _models(self, session: Session, params: Params) -> Answer:
        local = session.user == LOCAL_USER
        services = self._host.services.values()
        return [
            {
                **describe_model(service.description, local=local),
                "adapters": service.adapters.names,
                "traits": traits_of(service.description),
            }
            for service in services
        ]

    def _list_programs(self, session: Session, params: Params) -> Answer:
        return [describe_program(program) for program in self._programs.list(session.scope)]

    def _instances(self, session: Session, params: Params) -> Answer:
        everyone = params.flag("all")
        return [
            describe_instance(instance)
            for instance in self._host.lifecycle.instances(session.scope)
            if everyone or instance.state is State.RUNNING
        ]

    def _stats(self, session: Session, params: Params) -> Answer:
        return describe_stats(self._host)

    # Adapters

    def _adapters(self, session: Session, params: Params) -> Answer:
        return [
            {"model": model, "name": name}
            for model, service in self._host.services.items()
            for name in service.adapters.names
        ]

    async def _load_adapter(self, session: Session, params: Params) -> Answer:
        session.check_admin(self._config.admins)
        model, name, folder = params.text("model"), params.text("name"), params.text("folder")
        if not Path(folder).is_absolute():
            raise ApiError(
                "invalid-argument", f"folder {folder!r} of the server's machine is not absolute"
            )
        await self._host.adapters.load(model, name, folder)

    def _unload_adapter(self, session: Session, params: Params) -> Answer:
        session.check_admin(self._config.admins)
        self._host.adapters.unload(params.text("model"), params.text("name"))

    # MCP servers

    def _mcp_servers(self, session: Session, params: Params) -> Answer:
        return self._host.mcp.registry.describe(session.user)

    def _register_mcp(self, session: Session, params: Params) -> Answer:
        fields: dict[str, Any] = {
            **{name: params.text(name) for name in ("url", "command") if params.has(name)},
            "headers": params.table("headers"),
            "args": tuple(params.texts("args")),
            "env": params.table("env"),
        }
        self._host.mcp.registry.register(session.user, params.text("name"), **fields)

    def _unregister_mcp(self, session: Session, params: Params) -> Answer:
        self._host.mcp.registry.unregister(session.user, params.text("name"))

    # Programs

    def _has(self, session: Session, params: Params) -> Answer:
        return self._programs.has(params.text("hash"))

    def _upload(self, session: Session, params: Params) -> Answer:
        """Begins an upload, or ends it at once if the bytes are here: a null answer asks for them."""
        digest, name, size = params.text("hash"), params.text("name"), params.number("size")
        self._programs.check(name, size)
        known = self._programs.name_again(digest, name, session.user)
        if known is not None:
            return describe_program(known)
        if size == 0:
            raise ApiError("invalid-argument", "the program is empty")
        if digest in session.uploads:
            session.uploads.pop(digest).discard()
        if len(session.uploads) >= MAX_UPLOADS:
            raise ApiError("busy", f"{MAX_UPLOADS} uploads are under way; finish one first")
        path = self._programs.temporary_path()
        session.uploads[digest] = Upload(digest, name, size, path, path.open("wb"))
        return None

    async def _upload_chunk(self, session: Session, params: Params) -> Answer:
        """Takes the next bytes of an upload. The last ones end it: null before, the program then."""
        digest, offset, data = params.text("hash"), params.number("offset"), params.data("data")
        upload = session.uploads.get(digest)
        if upload is None:
            raise ApiError("not-found", "no such upload is under way; begin it anew")
        if offset != upload.received or len(data) > CHUNK_BYTES or not data:
            raise ApiError(
                "invalid-argument",
                f"byte {upload.received} and up to {CHUNK_BYTES} bytes are to come next,"
                f" not {len(data)} bytes from {offset}",
            )
        upload.received += len(data)
        if upload.received > upload.size:
            session.uploads.pop(digest).discard()
            raise ApiError("invalid-argument", f"more than the {upload.size} bytes announced came")
        upload.file.write(data)
        if upload.received < upload.size:
            return None
        del session.uploads[digest]
        upload.file.close()
        try:
            return describe_program(await self._keep(upload, session.user))
        finally:
            upload.discard()

    async def _keep(self, upload: Upload, user: str) -> Program:
        """Checks a program that has arrived, and keeps it if it can run here."""
        kind, found = await trio.to_thread.run_sync(_inspect, upload.path, f"{upload.name}.py")
        if found != upload.digest:
            raise ApiError("invalid-argument", f"the bytes hash to {found}, not {upload.digest}")
        if kind == "component":
            candidate = Program(
                found, upload.name, kind, upload.size, user, time.time_ns(), str(upload.path)
            )
            await self._host.lifecycle.prepare(candidate)
        return self._programs.adopt(upload.path, found, upload.name, kind, user)

    # Instances

    def _launch(self, session: Session, params: Params) -> Answer | Awaitable[Answer]:
        program = self._programs.find(params.text("program"), session.user)
        args, detached = params.texts("args"), params.flag("detached")
        window = params.number("window", DEFAULT_WINDOW)
        check_arguments(args)
        lifecycle = self._host.lifecycle
        if not lifecycle.can_start(program):
            return self._launch_later(session, program, args, detached, window)
        instance = lifecycle.start(program, args, session.user, detached=detached)
        return self._launched(session, instance, detached, window)

    async def _launch_later(
        self, session: Session, program: Program, args: list[str], detached: bool, window: int
    ) -> Answer:
        lifecycle = self._host.lifecycle
        instance = await lifecycle.launch(program, args, session.user, detached=detached)
        # Nothing interrupts a compilation: who asked may have given up, or be gone for good, meanwhile.
        if not detached and trio.current_effective_deadline() == -math.inf:
            lifecycle.kill(instance, "its client has left")
            raise ApiError("cancelled", "the request was given up")
        return self._launched(session, instance, detached, window)

    def _launched(
        self, session: Session, instance: Instance, detached: bool, window: int
    ) -> Answer:
        outlet = self._outlet_of(instance)
        outlet.lives_alone = detached
        if not detached:
            self._read(session, outlet, window)
        program = instance.program
        return {"instance": instance.id, "program": program.name, "hash": program.hash}

    def _attach(self, session: Session, params: Params) -> Answer:
        instance = self._find(session, params)
        outlet = self._outlet_of(instance)
        received = params.number("received") if params.has("received") else None
        ended = instance.ended
        if outlet.finished and ended is not None:
            # Its last item has been consumed: what is left to tell is how it ended.
            return {"first": outlet.next_number, "state": ended.state.value, "text": ended.text}
        previous = outlet.reader
        if previous is not None and previous is not session:
            self._take_from(previous, instance)
        self._read(session, outlet, params.number("window", DEFAULT_WINDOW), received)
        return {
            "instance": instance.id,
            "first": outlet.next_number,
            "state": "running",
            "text": "",
        }

    def _read(
        self, session: Session, outlet: Outlet, window: int, received: int | None = None
    ) -> None:
        session.streams[outlet.instance.id] = outlet
        outlet.attach(session, window, received)
        if session.gone_at is not None:
            outlet.absent()

    def _detach(self, session: Session, params: Params) -> Answer:
        outlet = session.streams.pop(params.text("instance"), None)
        if outlet is not None:
            outlet.detach()
        return None

    async def _send(self, session: Session, params: Params) -> Answer:
        """Puts a message into an instance's mailbox, waiting for room; one at a time from a session."""
        instance = self._find(session, params)
        if instance.id in session.sending:
            raise ApiError("busy", "the message before waits for room still; send one at a time")
        text = params.is_text("message")
        message = params.text("message") if text else params.data("message")
        size = len(message.encode()) if isinstance(message, str) else len(message)
        limit = instance.limits.message_bytes
        if size > limit:
            raise ApiError(
                "limit-exceeded", f"a message of {size} bytes; {limit} at most: send it in parts"
            )
        mailbox: Mailbox[Any] = instance.texts if text else instance.blobs
        session.sending.add(instance.id)
        try:
            while instance.state is State.RUNNING and not mailbox.has_room:
                await _first(mailbox.room, instance.ended_event.wait)
        finally:
            session.sending.discard(instance.id)
        if instance.state is not State.RUNNING:
            raise ApiError("cancelled", f"instance {instance.id} has ended; it receives nothing")
        mailbox.put(message, size)
        return None

    async def _result(self, session: Session, params: Params) -> Answer:
        instance = self._find(session, params)
        await instance.ended_event.wait()
        assert instance.ended is not None
        return {"state": instance.ended.state.value, "text": instance.ended.text}

    def _kill(self, session: Session, params: Params) -> Answer:
        instance = self._find(session, params)
        alive = instance.state is State.RUNNING
        self._host.lifecycle.kill(instance, f"by {session.user}")
        return alive

    def _logs(self, session: Session, params: Params) -> Answer:
        """Lines from number `after` on; `next` is the `after` of a later request."""
        instance = self._find(session, params)
        first = instance.logged - len(instance.log)  # number of the oldest line kept
        skip = max(0, params.number("after", 0) - first)
        return {
            "lines": describe_log(list(instance.log)[skip:]),
            "next": instance.logged,
            "ended": instance.ended is not None,
        }

    def _find(self, session: Session, params: Params) -> Instance:
        return self._host.lifecycle.find(params.text("instance"), session.scope)


async def _first(*waits: Callable[[], Awaitable[None]]) -> None:
    """Waits for the first of several."""
    async with trio.open_nursery() as nursery:

        async def one(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(partial(one, wait))


def _inspect(path: Path, filename: str) -> tuple[Any, str]:
    """Kind and hash of a program in a file; checks it if it is a Python source. Blocking."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        kind = kind_of(file.read(4))
        if kind == "python":
            file.seek(0)
            check_source(file.read(), filename)
    return kind, digest
