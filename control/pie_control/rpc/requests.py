"""Requests of clients: one method per request, named as in `docs/protocol.md`."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from pie_control.errors import ApiError, Shortage, exceeded, invalid
from pie_control.instances.instance import Instance, InstanceState
from pie_control.instances.launcher import check_arguments
from pie_control.instances.mailbox import Mailbox
from pie_control.models.served import traits_of
from pie_control.programs.store import Program, is_hash
from pie_control.rpc.describe import describe_instance, describe_model, inspect, tokens_of, waits_of
from pie_control.rpc.params import Answer, Handlers, text_or_bytes
from pie_control.rpc.program_requests import ProgramRequests, check_unused
from pie_control.rpc.session import Presence, Session
from pie_control.rpc.sessions import Sessions
from pie_control.tasks import disk_may_refuse, take_off
from pie_py import __version__
from pie_py.config.keys import LOCAL_USER
from pie_py.config.printable import quoted
from pie_py.config.server import ServerConfig
from pie_py.config.shipped_files import contract_version
from pie_py.wire import methods
from pie_py.wire.rpc import PROTOCOL

if TYPE_CHECKING:
    from pie_control.wiring import Wiring

MOST_ASLEEP = 1000  # instances that are listed, the newest
LOG_BYTES = 128 << 10  # of lines in an answer, about: others wait while it is made and encrypted


# Has a program sent here, by its hash and for a user.
Fetch: TypeAlias = Callable[[str, str], Awaitable[None]]


class Requests:
    """Answers requests. A method that may have to wait is a coroutine function."""

    def __init__(
        self,
        config: ServerConfig,
        parts: Wiring,
        doing: Callable[[], list[str]],
        turns: Callable[[], dict[str, tuple[int, float]]],
        fetch: Fetch | None,
        sessions: Sessions,
    ) -> None:
        """Takes the parts of a server that requests act on; what a launch waits for that is done
        once; how many turns were over their budget, and the longest in seconds, by loop; and what
        has programs that are not here sent by the other nodes of a cluster.
        """
        self._config = config
        self._parts = parts
        self._doing = doing
        self._turns = turns
        self._fetch = fetch
        self._sessions = sessions
        self._mcp = parts.mcp.registry
        self._programs = ProgramRequests(
            config, parts.shares, parts.programs, parts.launcher.prepare, parts.confined
        )
        parts.registry.on_forget.append(sessions.forget_instance)
        self._sending: set[tuple[Session, str]] = set()  # instances that a message waits for
        self._waiting_bytes: Counter[str] = Counter()  # of those messages, by user
        # Adapters that go with it, by name and hash.
        self._of_session: dict[Session, dict[tuple[str, str], Program]] = {}
        self._started = parts.clock()
        self._clock_ns = parts.clocks.monotonic_ns
        self._epoch_ns = parts.clocks.date_ns() - self._clock_ns()  # the date at which that was 0
        known = methods.OF_ALL_NODES + methods.OF_INSTANCES
        self.answer = Handlers(known, self._programs, self).answer

    def forget(self, session: Session) -> None:
        """A session has ended: what it has begun and not finished goes, and its own adapters."""
        self._programs.forget(session)
        for file in self._of_session.pop(session, {}).values():
            with disk_may_refuse("remove an adapter of a session"):
                self._forget_adapter(session.user, file.name, file.hash)

    # Queries

    def _server(self, session: Session, asked: methods.Server) -> Answer:
        return {
            "version": __version__,
            "contract": contract_version(),
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "uptime": self._parts.clock() - self._started,
            "endpoint": self._config.endpoint,
            "user": session.user,
            "models": self._parts.models.names,
            "instances": self._parts.registry.live_count,
            "max_instances": self._config.max_instances,
            "launched": self._parts.registry.launched,
            "deadlines_missed": self._parts.goals.missed,
            "long_turns": self._turns(),
            "limits": self._config.limits.model_dump(mode="json"),
            "doing": self._doing(),
            **(
                {"cache_folder": str(self._config.cache_folder)}
                if session.user == LOCAL_USER
                else {}
            ),
        }

    def _models(self, session: Session, asked: methods.Models) -> Answer:
        local, models = session.user == LOCAL_USER, self._parts.models
        by_request = self._parts.on_demand.describe()
        found: list[dict[str, Any]] = []
        if asked.unloaded and by_request and not models.resident:  # its worker is starting
            coming = (model.called for model in self._config.models if not model.on_demand)
            found = [{"name": name, "adapters": [], "state": "loading"} for name in coming]
        for name in models.names:
            service = models.services.get(name)
            facts = models.seen.get(name) if service is None else service.description
            if service is None and not asked.unloaded:
                continue
            known: dict[str, Any] = {"name": name}
            if facts is not None:
                known = {**describe_model(facts, local=local), "traits": traits_of(facts)}
            adapters = [] if service is None else service.adapters.names(session.user)
            weights = "" if service is None else service.weights
            state = by_request.get(name, {"state": "loaded"})
            found.append({**known, "adapters": adapters, "weights": weights, **state})
        return found

    async def _load_model(self, session: Session, asked: methods.LoadModel) -> Answer:
        if asked.keep is not None:
            session.check_admin(self._config.admins)
        self._parts.on_demand.keep(asked.model, asked.keep)
        await self._parts.on_demand.load(asked.model)

    async def _unload_model(self, session: Session, asked: methods.UnloadModel) -> Answer:
        session.check_admin(self._config.admins)
        await self._parts.on_demand.unload(asked.model)

    async def _pause_model(self, session: Session, asked: methods.PauseModel) -> Answer:
        session.check_admin(self._config.admins)
        await self._parts.weights.pause(asked.model, keep=asked.keep)

    def _resume_model(self, session: Session, asked: methods.ResumeModel) -> Answer:
        session.check_admin(self._config.admins)
        self._parts.weights.resume(asked.model)

    async def _update_weights(self, session: Session, asked: methods.UpdateWeights) -> Answer:
        session.check_admin(self._config.admins)
        _check_absolute("file", asked.file)
        return await self._parts.weights.replace(asked.model, asked.file, asked.version)

    def _instances(self, session: Session, asked: methods.Instances) -> Answer:
        scope = self._scope(session, asked.users)
        return [
            describe_instance(instance, self._parts.models)
            for instance in self._parts.registry.instances(scope, MOST_ASLEEP)
            if asked.all or instance.state is InstanceState.RUNNING
        ]

    def _stats(self, session: Session, asked: methods.Stats) -> Answer:
        return {name: of.stats() for name, of in self._parts.models.services.items()}

    async def _quota(self, session: Session, asked: methods.Quota) -> Answer:
        user = self._about(session, asked)
        users = self._users() if user is None else [user]
        return [await self._parts.shares.of_user(user) for user in users]

    async def _usage(self, session: Session, asked: methods.Usage) -> Answer:
        return await self._parts.ledger.usage(self._about(session, asked), asked.days)

    def _about(self, session: Session, asked: methods.Quota | methods.Usage) -> str | None:
        """The user that is asked about; None for all."""
        if asked.users:
            session.check_admin(self._config.admins)
            return None
        return session.acts_for(asked.of, self._config.admins)

    def _users(self) -> list[str]:
        """Users who have something."""
        users = {instance.user for instance in self._parts.registry.instances(None)}
        users |= {program.uploaded_by for program in self._parts.programs.list()}
        return sorted(users | self._sessions.users())

    # Adapters

    def _adapters(self, session: Session, asked: methods.Adapters) -> Answer:
        return [
            {"model": model, "name": name}
            for model, service in self._parts.models.services.items()
            for name in service.adapters.names(session.user)
        ]

    async def _load_adapter(self, session: Session, asked: methods.LoadAdapter) -> None:
        if asked.hash:
            await self._load_uploaded(session, asked)
            return
        session.check_admin(self._config.admins)
        _check_absolute("folder", asked.folder)
        await self._parts.adapters.load(asked.model, asked.name, asked.folder)

    async def _load_uploaded(self, session: Session, asked: methods.LoadAdapter) -> None:
        """Loads what the user has uploaded, and removes what it replaces; what cannot be loaded
        does not stay. Tensors without a model are only kept.
        """
        user, programs = session.user, self._parts.programs
        kind = "adapter" if asked.model else "tensors"
        mine = [each for each in programs.list(user) if each.kind == kind]
        of_name = [each for each in mine if each.name == asked.name]
        file = next((each for each in of_name if each.hash == asked.hash), None)
        if file is None:
            raise ApiError("not-found", f"you have uploaded no {kind} {quoted(asked.name)} so")
        own, key = self._of_session.setdefault(session, {}), (file.name, file.hash)
        is_new = asked.session and key not in own
        if is_new:  # before it is loaded: that goes on if its client leaves
            own[key] = file
        if session.presence is Presence.ENDED:  # in the turn in which this was asked
            self.forget(session)
            return
        try:
            if asked.model:
                await self._parts.adapters.load(
                    asked.model, asked.name, file.path, user, file.hash, stays=not asked.session
                )
        except ApiError as error:
            if is_new:
                del own[key]
            if error.code != "busy" and file.hash not in self._parts.adapters.versions:
                programs.remove([file])
            raise
        for each in of_name:
            if each.hash != file.hash:
                self._forget_adapter(user, each.name, each.hash)  # also of another model
        if not asked.session:
            self._outlives_sessions(user, key)

    def _outlives_sessions(self, user: str, key: tuple[str, str]) -> None:
        """An adapter of a user goes with none of their sessions any more."""
        for session, own in self._of_session.items():
            if session.user == user:
                own.pop(key, None)

    def _unload_adapter(self, session: Session, asked: methods.UnloadAdapter) -> Answer:
        user, name = session.user, asked.name
        kinds = ("adapter", "tensors")
        own = [each for each in self._parts.programs.list(user) if each.kind in kinds]
        version = next((each.hash for each in own if each.name == name), None)
        if version is not None:
            self._forget_adapter(user, name, version)
        else:
            session.check_admin(self._config.admins)
            self._parts.adapters.unload(asked.model, name)

    def _forget_adapter(self, user: str, name: str, version: str) -> None:
        """Unloads what a user has uploaded, and removes it from the disk."""
        self._outlives_sessions(user, (name, version))
        self._parts.adapters.unload_version(user, name, version)
        files = self._parts.programs.list(user)
        self._parts.programs.remove(
            each for each in files if (each.name, each.hash) == (name, version)
        )

    # MCP servers

    def _mcp_servers(self, session: Session, asked: methods.McpServers) -> Answer:
        return self._mcp.describe(session.acts_for(asked.user, self._config.admins))

    def _register_mcp(self, session: Session, asked: methods.RegisterMcp) -> Answer:
        place = {"url": asked.url, "command": asked.command}
        self._mcp.register(
            session.acts_for(asked.user, self._config.admins),
            asked.name,
            **{name: value for name, value in place.items() if value is not None},
            headers=asked.headers,
            args=tuple(asked.args),
            env=asked.env,
        )

    def _unregister_mcp(self, session: Session, asked: methods.UnregisterMcp) -> Answer:
        self._mcp.unregister(session.acts_for(asked.user, self._config.admins), asked.name)

    # Programs

    def _remove_program(self, session: Session, asked: methods.RemoveProgram) -> Answer:
        """Removes programs of the user: those of a name, or of a hash."""
        programs = self._programs.to_remove(session, asked)
        running = [
            instance
            for instance in self._parts.registry.instances(session.user)
            if instance.state is InstanceState.RUNNING and instance.program in programs
        ]
        check_unused(asked, [instance.id for instance in running])
        for instance in running:
            self._parts.registry.condemn(instance, f"{session.user} has removed its program")
        for program in programs:
            if program.kind == "adapter":
                self._parts.adapters.unload_version(session.user, program.name, program.hash)
        return self._programs.remove(programs)

    # Instances

    def _launch(self, session: Session, asked: methods.Launch) -> Answer | Awaitable[Answer]:
        fetch = self._fetch if is_hash(asked.program) else None
        if fetch is not None and not self._parts.programs.has(asked.program):
            return self._launch_later(session, asked, fetch)
        program = self._parts.programs.find(asked.program, session.user)
        check_arguments(asked.args)
        if self._is_durable(asked, program) or not self._parts.launcher.can_start(program):
            return self._launch_later(session, asked)
        instance = self._parts.launcher.start(
            program, asked.args, session.user, detached=asked.detached
        )
        return self._launched(session, instance, asked)

    def _is_durable(self, asked: methods.Launch, program: Program) -> bool:
        return asked.durable or self._parts.durable.wants(program.name)

    async def _launch_later(
        self, session: Session, asked: methods.Launch, fetch: Fetch | None = None
    ) -> Answer:
        """Of a program that is not loaded yet, or that this node of a cluster does not have."""
        if fetch is not None:
            await fetch(asked.program, session.user)
        program = self._parts.programs.find(asked.program, session.user)
        check_arguments(asked.args)
        if self._is_durable(asked, program):
            instance = await self._parts.durable.launch(
                program, asked.args, session.user, asked.goal
            )
        else:
            await self._parts.launcher.until_can_start(program)
            instance = self._parts.launcher.start(
                program, asked.args, session.user, detached=asked.detached
            )
        # A compilation runs to its end though the client has given the request up, or has left.
        left = not asked.detached and trio.current_effective_deadline() == -math.inf
        if left and instance.durable is None:
            self._parts.registry.kill(instance, "its client has left")
            raise ApiError("cancelled", "the request was given up")
        return self._launched(session, instance, asked)

    def _launched(self, session: Session, instance: Instance, asked: methods.Launch) -> Answer:
        stream = self._sessions.stream_of(instance)
        stream.lives_alone = asked.detached or instance.durable is not None
        instance.tag = asked.tag
        instance.aim.take(asked.goal)
        instance.keeps_newest = asked.keep_newest and instance.durable is None
        if asked.detached:
            self._parts.results.follow(instance)
        else:
            self._sessions.read(session, stream, asked.window, None)
        return _started(instance)

    def _attach(self, session: Session, asked: methods.Attach) -> Answer | Awaitable[Answer]:
        try:
            instance = self._find(session, asked.instance)
        except ApiError as error:
            return self._attach_to_ended(session, asked.instance, error)
        stream = self._sessions.stream_of(instance)
        ended = instance.ended
        if stream.finished and ended is not None:
            # Its last item has been consumed: what is left to say is how it ended.
            return {"first": stream.next_number, "state": ended.state.value, "text": ended.text}
        self._sessions.read(session, stream, asked.window, asked.received)
        return {
            "instance": instance.id,
            "first": stream.next_number,
            "state": "running",
            "text": "",
            "durable": instance.durable is not None,
        }

    async def _attach_to_ended(self, session: Session, instance: str, error: ApiError) -> Answer:
        return {"first": 0, **await self._stored_result(session, instance, error)}

    async def _resume(self, session: Session, asked: methods.Resume) -> Answer:
        instance = await self._parts.durable.resume(asked.instance, session.scope)
        self._sessions.stream_of(instance).lives_alone = True
        return _started(instance)

    async def _branch(self, session: Session, asked: methods.Branch) -> Answer:
        instance = await self._parts.durable.branch(
            asked.instance, session.scope, asked.call, asked.program, asked.args
        )
        stream = self._sessions.stream_of(instance)
        stream.lives_alone = True
        self._sessions.read(session, stream, asked.window, None)
        return {**_started(instance), "first": stream.next_number}

    async def _calls(self, session: Session, asked: methods.Calls) -> Answer:
        return await self._parts.durable.calls(asked.instance, session.scope, asked.after)

    def _detach(self, session: Session, asked: methods.Detach) -> Answer:
        self._sessions.stop_reading(session, asked.instance)

    async def _send(self, session: Session, asked: methods.Send) -> Answer:
        """Puts a message into a mailbox, waiting for room; one at a time from a session."""
        instance = self._find(session, asked.instance)
        key = (session, instance.id)
        if key in self._sending:
            raise ApiError("busy", "the message before waits for room still; send one at a time")
        message = text_or_bytes("send", asked.message)
        size = len(message.encode()) if isinstance(message, str) else len(message)
        limit = instance.limits.message_bytes
        if size > limit:
            raise exceeded(f"a message of {size} bytes; {limit} at most: send it in parts")
        mailbox: Mailbox[Any] = instance.texts if isinstance(message, str) else instance.blobs
        user = session.user
        most = self._parts.registry.message_share.most(user)
        if self._waiting_bytes[user] >= most and not mailbox.has_room:
            raise Shortage(
                f"{self._waiting_bytes[user]} bytes of your messages wait for room in mailboxes"
                " already, the most that one user may have here; have instances receive some"
            )
        self._sending.add(key)
        self._waiting_bytes[user] += size
        try:
            while instance.state is InstanceState.RUNNING and not mailbox.has_room:
                await _first(mailbox.room, instance.ended_event.wait)
        finally:
            self._sending.discard(key)
            take_off(self._waiting_bytes, user, size)
        durable = instance.durable
        if durable is not None:
            durable.journal.check_here()
        if instance.state is not InstanceState.RUNNING:
            raise ApiError("cancelled", f"instance {instance.id} has ended; it receives nothing")
        if durable is None or durable.receives(asked.id, message):
            mailbox.put(message)
        if durable is not None:
            durable.wake()
            await durable.journal.until_safe()
        return None

    async def _stored_result(
        self, session: Session, instance: str, error: ApiError
    ) -> dict[str, str]:
        """How an instance has ended whose result alone is left, of this server or one before.
        Raises the error if that is not known.
        """
        found = self._parts.results.find(instance, session.scope)
        if found is None:
            found = await self._parts.durable.shelf.result(instance, session.scope)
        if found is None:
            raise error
        return {"state": found.state, "text": found.text}

    async def _result(self, session: Session, asked: methods.Result) -> Answer:
        try:
            instance = self._find(session, asked.instance)
        except ApiError as error:
            return await self._stored_result(session, asked.instance, error)
        await instance.ended_event.wait()
        if instance.durable is not None:
            instance.durable.journal.check_here()
        assert instance.ended is not None
        return {"state": instance.ended.state.value, "text": instance.ended.text}

    def _await_tools(self, session: Session, asked: methods.AwaitTools) -> Answer:
        models = self._parts.models
        if asked.person:
            models.await_person(self._find(session, asked.instance))
        elif asked.tools:
            models.await_tools(self._find(session, asked.instance), asked.tools)
        elif (waited := models.go_on(asked.instance, session.scope)) is not None:
            seconds, account = waited
            self._parts.ledger.waited(account, seconds)
        return None

    def _kill(self, session: Session, asked: methods.Kill) -> Answer:
        operator = session.user in self._config.admins
        instance = self._parts.registry.find(asked.instance, None if operator else session.scope)
        alive = instance.state is InstanceState.RUNNING
        # At once: a client that waits for the answer finds what it had free, such as its messages.
        self._parts.registry.kill(instance, f"by {session.user}")
        return alive

    def _inspect(self, session: Session, asked: methods.Inspect) -> Answer:
        instance = self._find(session, asked.instance)
        found = inspect(instance, self._parts.models, session.scope)
        if asked.context is not None:
            found["context_tokens"] = tokens_of(instance, asked.context)
        return found

    def _logs(self, session: Session, asked: methods.Logs) -> Answer:
        """Lines from number `after` on, as many as one answer has; `next` is the `after` of a later
        request, `total` the lines so far.
        """
        instance = self._find(session, asked.instance)
        lines, following = instance.log.part(asked.after, LOG_BYTES)
        return {
            "lines": [asdict(line) for line in lines],
            "next": following,
            "total": instance.log.total,
            "ended": instance.ended is not None,
        }

    def _trace(self, session: Session, asked: methods.Trace) -> Answer:
        """Waits and batches from number `after` on; `next` is the `after` of a later request."""
        instance = self._find(session, asked.instance)
        timeline = instance.timeline
        dates = self._epoch_ns, instance.created_ns
        reason = ", ".join(waits_of(instance)) or None
        waits = timeline.wait_until(self._clock_ns(), reason, *dates)
        return {
            "program": instance.program.name,
            "begun_ns": instance.created_ns,
            "ended_ns": None if instance.ended is None else instance.ended.time_ns,
            "spans": timeline.after(asked.after, *dates),
            "next": timeline.total,
            "open": None if instance.ended else waits,
        }

    def _scope(self, session: Session, all_users: bool) -> str | None:
        """Whose instances are asked for: None for those of all users."""
        if all_users:
            session.check_admin(self._config.admins)
            return None
        return session.scope

    def _find(self, session: Session, instance: str) -> Instance:
        return self._parts.registry.find(instance, session.scope)


def _started(instance: Instance) -> dict[str, Any]:
    program = instance.program
    return {
        "instance": instance.id,
        "program": program.name,
        "hash": program.hash,
        "durable": instance.durable is not None,
    }


async def _first(*waits: Callable[[], Awaitable[None]]) -> None:
    """Waits for the first of several."""
    async with trio.open_nursery() as nursery:

        async def one(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(partial(one, wait))


def _check_absolute(what: str, path: str) -> None:
    if not Path(path).is_absolute():
        text = f"{what} {path!r} of the server's machine is not absolute"
        raise invalid(text)
