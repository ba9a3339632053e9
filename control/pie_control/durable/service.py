"""Durable instances: launched, going on after a crash or on request, and branched off."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio

from pie_control.api.messaging.functions import Bus
from pie_control.durable.children import Children
from pie_control.durable.queues import MessageCalls, Queues
from pie_control.durable.shelf import Ended, Shelf
from pie_control.durable.sleeping import Sleepers
from pie_control.durable.waits import Call, durable_of, quiet
from pie_control.errors import (
    ApiError,
    ProgramRejected,
    Refusal,
    Shortage,
    exceeded,
    invalid,
    unsupported,
)
from pie_control.instances.durable import Durable
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.instances.launcher import Launcher
from pie_control.instances.registry import Registry
from pie_control.instances.result_store import ResultStore, StoredResult
from pie_control.instances.turns import Executor
from pie_control.journal.file import FORMAT, DamagedJournal, Journal, JournalLost, framed
from pie_control.journal.past import MOST_RECEIVED, Past, head_of, up_to
from pie_control.programs.store import Program, is_hash
from pie_control.shares import Shares
from pie_control.tasks import Service
from pie_control.timers import Timers
from pie_control.wasm.linker import SUSPENDED, HostFunction
from pie_py import __version__
from pie_py.build.runtimes import RUNTIMES
from pie_py.config.services import DurableConfig
from pie_py.config.shipped_files import contract_version
from pie_py.wire.methods import Goal

log = structlog.get_logger("pie.durable")

RETRY_SECONDS = 1.0  # between tries to have room for one that goes on, or for messages on the disk
MOST_CALLS = 1000  # that are told at once
SHORT = 120  # characters of an answer
LOOK_SECONDS = 600.0  # between looks for journals that are old


class DurableInstances(Service):
    """The durable instances of one server."""

    def __init__(
        self,
        config: DurableConfig,
        folder: Path | None,
        cache_folder: Path,
        registry: Registry,
        launcher: Launcher,
        results: ResultStore,
        shares: Shares,
        timers: Timers,
        date_ns: Callable[[], int],
        is_busy: Callable[[Instance], bool],
        bus: Bus,
        forget: Callable[[str], None],
    ) -> None:
        """Takes the folder of journals, None where there can be none: in a cluster, unless its
        database has them (`share`); whether an instance has a request under way; and what is called
        with the id of one whose journal is removed.
        """
        self._config = config
        self._enabled = folder is not None
        self._runtime = cache(partial(_runtime, cache_folder))  # by many files' content
        self._registry = registry
        self._launcher = launcher
        self._results = results
        self._timers = timers
        self._date_ns = date_ns
        self.shelf = Shelf(folder or Path(), self.cannot_write, date_ns, forget)
        self._fetch: Callable[[str, str], Awaitable[None]] | None = None
        of_user = lambda user: self.shelf.bytes_of(user)  # noqa: E731
        self._share = shares.add("bytes of journals", config.bytes, of_user)
        self._instances: dict[Journal, Instance] = {}  # alive, or asleep
        writer = self.shelf.writer  # of this server alone, as are sleepers, messages and children
        self._sleepers = Sleepers(
            config.idle_seconds,
            registry,
            shares,
            timers,
            date_ns,
            is_busy,
            self.shelf,
            self._begin_again,
            self._start_task,
        )
        self._bus = bus
        self._queues = Queues(bus, (folder or Path()) / "queues", writer)
        self._children = Children(registry, self._begin_child, self._start_task)
        self._coming: set[str] = set()  # instances that are to go on, and do not yet
        launcher.launch_durably = self._children.launch
        registry.on_end.append(self._on_end)

    def share(self, shelf: Shelf, fetch: Callable[[str, str], Awaitable[None]]) -> None:
        """Has journals that other nodes may go on with; `fetch` has a program here, by hash."""
        self.shelf, self._fetch, self._enabled = shelf, fetch, True

    def lose(self, reason: str) -> None:
        """Other nodes may have the instances from now on."""
        for journal, instance in list(self._instances.items()):
            self._results.unfollow(instance)
            journal.lose(reason)
            self._registry.fail(instance, reason)

    def wants(self, program: str) -> bool:
        """True if the configuration says that a program's instances are durable."""
        return program in self._config.programs

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Has the instances of a server before this one go on, and writes, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            await nursery.start(self.shelf.run)
            if self._fetch is not None:  # the others' come when they come
                nursery.start_soon(self._find_all)
            elif self._enabled:
                await self._find_all()
                nursery.start_soon(self._sleepers.run, lambda: list(self._instances.values()))
            if self._enabled:
                nursery.start_soon(self._look)
            task_status.started()

    def message_calls(self, executor: Executor) -> MessageCalls:
        """The functions about topics and work queues."""
        return MessageCalls(self._bus, self._queues, executor, self.shelf.writer)

    def checkpoint_calls(self) -> dict[str, Callable[[HostFunction], Call]]:
        """The functions about checkpoints: the program says its state, and begins again with it.

        So a journal is no longer than what an instance has done since then. There is one way to go
        on from a state, at once and after a crash: the program's start.
        """
        return {
            "runtime.last-checkpoint": lambda _: lambda instance: durable_of(instance).past.state,
            "runtime.checkpoint": lambda made: quiet(replace(made, call=self._checkpoint)),
        }

    def _checkpoint(self, instance: Instance, state: bytes) -> Any:
        durable = durable_of(instance)
        if durable.goes_over:
            raise durable.departs("runtime.checkpoint")
        if durable.past.topics:
            raise ApiError("busy", "it has subscriptions, whose messages would be lost: end them")
        if any(len(child) == 1 for child in durable.past.children.values()):
            raise ApiError("busy", "children run: wait for them")
        if len(state) > durable.most // 2:
            raise exceeded(
                f"a state of {len(state)} bytes; {durable.most // 2} at most (half of"
                " durable.journal_bytes)"
            )
        self._start_task(self._cut, instance, state)
        return SUSPENDED

    async def _look(self) -> None:
        while True:
            await self.shelf.drop_old(self._config.keep_seconds)
            await trio.sleep(LOOK_SECONDS)

    # Begin

    async def launch(self, program: Program, args: list[str], user: str, goal: Goal) -> Instance:
        """Starts a durable instance, whose journal is on disk then.

        Raises:
            ApiError: `limit-exceeded`, `out-of-resources`, `unsupported`, `worker-lost`.
            ProgramRejected: if the program cannot run here.
        """
        await self._launcher.until_can_start(program)
        return await self._begin(program, args, user, [], goal=msgspec.to_builtins(goal))

    async def branch(
        self,
        instance: str,
        user: str | None,
        call: int,
        program: str | None,
        args: list[str] | None,
    ) -> Instance:
        """Starts an instance that has lived as another one up to and with a call, by its number;
        of the same program or of another one, with the same arguments or with others.

        Raises:
            ApiError: as `launch`; `not-found`; `invalid-argument`: it has no such call.
        """
        entries = await self._entries(instance, user)
        head = head_of(entries)
        if call > (calls := sum(entry[0] in ("call", "fails") for entry in entries[1:])):
            raise invalid(f"{instance} has {calls} calls, and none has the number {call}")
        await self._have(program or head["hash"], head["user"])
        found = (
            self._program(head) if program is None else self._launcher.find(program, head["user"])
        )
        await self._launcher.until_can_start(found)
        kept = up_to(entries, call)
        past = Past.of([head, *kept], 0)
        return await self._begin(
            found,
            head["args"] if args is None else args,
            head["user"],
            [*kept, ["acked", past.acked + len(past.outbox)]],
            secret=head["secret"],
            branched=[instance, call],
        )

    async def resume(self, instance: str, user: str | None) -> Instance:
        """Has an instance go on that has ended: killed, or by a limit or a fault of the server's.

        Raises:
            ApiError: `not-found`; `already-exists`: it is alive, or has returned a result.
        """
        entries = await self._entries(instance, user)
        if any(found.id == instance for found in self._instances.values()):
            raise ApiError("already-exists", f"{instance} is alive")
        if entries[-1][0] == "end" and entries[-1][1] == InstanceState.FINISHED.value:
            raise ApiError("already-exists", f"{instance} has its result; `branch` it to go on")
        kept = [entries[0], *(entry for entry in entries[1:] if entry[0] != "end")]
        past = Past.of(kept, sum(len(framed(entry)) for entry in kept))
        await self._have(past.head["hash"], past.head["user"])
        self._program(past.head)
        self._registry.check_room(past.head["user"])
        await self.shelf.rewind(instance, kept)
        return self._alive(instance, past)

    async def calls(self, instance: str, user: str | None, after: int) -> list[dict[str, Any]]:
        """The calls in a journal, behind the first ones. Raises ApiError `not-found`."""
        entries = await self._entries(instance, user)
        answer = {"call": 4, "fails": 3}  # their places in entries
        made = [entry for entry in entries[1:] if entry[0] in answer]
        return [
            {
                "number": after + place,
                "call": entry[1],
                "answer": str(entry[answer[entry[0]]])[:SHORT],
            }
            for place, entry in enumerate(made[after : after + MOST_CALLS], 1)
        ]

    async def _entries(self, instance: str, user: str | None) -> list[Any]:
        """The journal of an instance, alive or ended."""
        self._check_enabled()
        for journal, found in list(self._instances.items()):
            if found.id == instance:
                await journal.until_safe()
        return await self.shelf.entries(instance, user)

    async def _begin_child(
        self, program: Program, args: list[str], name: str, parent: Instance, number: int
    ) -> InstanceEnded | None:
        """As `children.Begin`."""
        try:
            entries = await self.shelf.entries(name, parent.user)
        except ApiError as error:
            if error.code != "not-found":
                raise
        else:
            end = Past.of(entries, 0).end  # without one it goes on once there is room
            return None if end is None else InstanceEnded(InstanceState(end[0]), *end[1:])
        await self._launcher.until_can_start(program)
        await self._begin(program, args, parent.user, [], name=name, parent=[parent.id, number])
        return None

    async def _begin(
        self,
        program: Program,
        args: list[str],
        user: str,
        entries: list[Any],
        *,
        name: str = "",
        **facts: Any,
    ) -> Instance:
        self._check_enabled()
        self.shelf.make_room(user, lambda: self._share.is_full(user))
        if self._share.is_full(user):
            raise Shortage(
                f"your journals have {self._share.has(user)} bytes, as many as one user may have"
                " here: wait until others of your durable instances have ended, or end some"
            )
        name = name or self._registry.new_id(program)
        kept = [self._head(program, args, user) | facts, *entries]
        size = await self.shelf.create(name, user, kept)
        try:
            return self._alive(name, Past.of(kept, size), is_new=True)
        except ApiError:
            self.shelf.remove(name)
            raise

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise unsupported(
                "durable instances of a cluster need a database: set server.store.database in"
                " cluster.toml"
            )

    def _head(self, program: Program, args: list[str], user: str) -> dict[str, Any]:
        return {
            "journal": FORMAT,
            "pie_py": __version__,
            "contract": contract_version(),
            "user": user,
            "program": program.name,
            "hash": program.hash,
            "runtime": self._runtime(program.kind),
            "args": args,
            "secret": secrets.token_hex(16),  # seeds of samplers come from it
            "created_ns": self._date_ns(),
        }

    # Go on

    async def _find_all(self) -> None:
        if self._fetch is not None:  # the others' come when they come
            async for instance in self.shelf.found():
                await self._find(instance)
            return
        names = [name async for name in self.shelf.found()]
        self._coming.update(names)
        found = await trio.to_thread.run_sync(self._left, names)
        pasts = {}
        for instance, past in zip(names, found, strict=True):
            if isinstance(past, Past):
                pasts[instance] = past
            else:
                self._cannot_read(instance, past)
        self._queues.begin((one for past in pasts.values() for one in past.pulled), names)
        # Parents before their children, which would wait for them.
        for instance, past in sorted(pasts.items(), key=lambda one: one[1].head["created_ns"]):
            self._goes_on(instance, past)
            await trio.lowlevel.checkpoint()

    def _left(self, names: list[str]) -> list[Past | DamagedJournal | OSError]:
        """Finds the instances that a server before this one has left; for a thread."""
        self._queues.read()
        return [self.shelf.left(name) for name in names]

    async def _find(self, instance: str) -> None:
        """An instance of another node."""
        try:
            past = await self._past(instance)
        except (DamagedJournal, OSError) as error:
            self._cannot_read(instance, error)
        else:
            self._start_task(self._until_alive, instance, past)

    async def _past(self, instance: str) -> Past:
        """As `Shelf.past`, once a database answers that was away."""
        while True:
            with suppress(ApiError):
                return await self.shelf.past(instance)
            await trio.sleep(RETRY_SECONDS)

    def _cannot_read(self, instance: str, error: DamagedJournal | OSError) -> None:
        self._coming.discard(instance)
        if isinstance(error, OSError):
            log.error("a journal cannot be read", instance=instance, reason=str(error))
            return
        log.error("a journal is damaged", instance=instance, reason=str(error))
        self.shelf.put_aside(instance)
        head = error.entries[0] if error.entries else {}
        user = head.get("user", "") if isinstance(head, dict) else ""
        self._keep_result(instance, user, f"internal: its journal is damaged: {error}")

    def _goes_on(self, instance: str, past: Past) -> None:
        """An instance of a server before this one: it has ended, sleeps, or is to be alive."""
        if past.end is not None:
            self._restore(instance, past)
        elif past.asleep is None or not self._sleeps(instance, past):
            self._start_task(self._until_alive, instance, past)
            return
        self._coming.discard(instance)

    async def _have(self, program: str, user: str) -> None:
        """Has a program here, by its hash; raises ApiError, Refusal: `not-found`."""
        if self._fetch is not None and is_hash(program):
            await self._fetch(program, user)

    def _restore(self, instance: str, past: Past) -> None:
        """The record of one that had ended: its client may lack messages."""
        assert past.end is not None
        state, text, time_ns = past.end
        head = past.head
        self.shelf.has_ended(Ended(instance, head["user"], past.size, time_ns, state, text))
        try:
            made = self._made(instance, past)
        except ApiError as error:
            log.info("a record is lost", instance=instance, reason=str(error))
            return
        made.ended = InstanceEnded(InstanceState(state), text, time_ns)
        self._registry.add_ended(made)
        self._tell_parent(head, made.ended)

    def _tell_parent(self, head: dict[str, Any], ended: InstanceEnded) -> None:
        parent, number = head.get("parent", ("", 0))
        if self._registry.knows(parent):
            self._children.grown(self._registry.find(parent, None), number, ended)

    def _parent(self, head: dict[str, Any]) -> Instance | None:
        """Raises ApiError: the parent has ended, or is not there yet."""
        name, _ = head.get("parent", ("", 0))
        if not name:
            return None
        if name in self._coming:
            raise Shortage("its parent is not there yet")
        if not self._registry.knows(name):
            raise ApiError("cancelled", "the parent instance has ended")
        return self._registry.find(name, None)

    def _sleeps(self, name: str, past: Past) -> bool:
        """True if one sleeps on, which would go on if it woke."""
        try:
            self._check(past)
            instance = self._made(name, past)
        except ApiError:
            return False  # as it is said once more
        self._opened(instance, past)
        self._registry.add_asleep(instance)
        self._results.follow(instance)
        self._sleepers.sleeps(instance, past)
        return True

    def _opened(self, instance: Instance, past: Past) -> None:
        journal = self.shelf.open(instance.id, instance.user, past.size)
        self._instances[journal] = instance
        instance.durable = self._durable(instance, journal, past)
        self._bus.stand(instance, past.topics)

    async def _until_alive(self, instance: str, past: Past) -> None:
        """Has one go on, once there is room for it here, or elsewhere."""
        self._coming.add(instance)
        try:
            await self._come(instance, past)
        finally:
            self._coming.discard(instance)

    async def _come(self, instance: str, past: Past) -> None:
        while True:
            try:
                await self._have(past.head["hash"], past.head["user"])
                if past.end is not None:
                    self._restore(instance, past)
                else:
                    self._check(past)
                    self._alive(instance, past)
                return
            except JournalLost:
                return
            except (ApiError, Refusal, OSError) as error:
                if isinstance(error, OSError) or not (
                    isinstance(error, Shortage) or error.code == "busy"
                ):
                    user, text = past.head["user"], f"internal: it cannot go on: {error}"
                    self.shelf.cannot_go_on(instance, text)
                    self._keep_result(instance, user, text)
                    self._tell_parent(past.head, InstanceEnded(InstanceState.FAILED, text))
                    return
            await trio.sleep(RETRY_SECONDS)
            if await self.shelf.release(instance):
                return

    def _program(self, head: Mapping[str, Any]) -> Program:
        """The program that a journal began with, under the name that it had. Raises ApiError."""
        return replace(self._launcher.find(head["hash"], head["user"]), name=head["program"])

    def _check(self, past: Past) -> None:
        """Refuses what would depart from its journal. Raises ApiError."""
        head = past.head
        if head["contract"] != contract_version():
            raise unsupported(
                f"it began with contract {head['contract']}, and this server has"
                f" {contract_version()}; a `branch` may go on"
            )
        program = self._program(head)
        if head["runtime"] != self._runtime(program.kind):
            raise unsupported(
                f"it began with the runtime {head['runtime']} of pie_py {head['pie_py']}, and this"
                " server has another one; a `branch` may go on"
            )

    def _made(self, instance: str, past: Past, *, is_new: bool = False) -> Instance:
        """An instance as its journal has it, without a guest. Raises ApiError."""
        head = past.head
        program = self._program(head)
        made = self._registry.create(
            program,
            head["args"],
            head["user"],
            parent=None if past.end else self._parent(head),
            instance_id=instance,
            again=not is_new,
        )
        made.created_ns = head["created_ns"]
        made.aim.since -= (self._date_ns() - made.created_ns) / 1e9
        try:
            made.aim.take(msgspec.convert(head.get("goal", {}), Goal))
        except msgspec.ValidationError as error:  # of another version
            raise invalid(f"its goal: {error}") from None
        made.first_item = past.acked
        boxes: tuple[tuple[Any, list[Any]], ...] = (
            (made.outbox, past.outbox),
            (made.texts, past.texts),
            (made.blobs, past.blobs),
        )
        for box, messages in boxes:
            for message in messages:
                box.put(message, force=True)
        return made

    def _alive(self, name: str, past: Past, *, is_new: bool = False) -> Instance:
        """Has an instance be alive, and begin a life. Raises ApiError, OSError."""
        if not is_new:
            self._registry.check_room(past.head["user"])
        instance = self._made(name, past, is_new=is_new)
        self._registry.forget(name)  # its record, if it has ended before
        self._opened(instance, past)
        self._registry.add(instance)
        self._results.follow(instance)
        if self._launcher.can_start(instance.program):
            self._launcher.begin(instance)
        else:
            self._start_task(self._begin_life, instance)
        return instance

    def _durable(self, instance: Instance, journal: Journal, past: Past) -> Durable:
        depart = partial(self._registry.fail, instance)
        return Durable(journal, past, depart, self._config.journal_bytes)

    def worker_lost(self) -> None:
        """All that instances had at the worker is gone: they begin another life."""
        for instance in list(self._instances.values()):
            if instance.guest is not None:  # others sleep, or begin anyway
                self._registry.begin_again(instance)
                self._start_task(self._begin_again, instance)

    async def _cut(self, instance: Instance, state: bytes) -> None:
        """Has one that waits for that begin another life, with a state in place of its journal."""
        durable, guest = durable_of(instance), instance.guest
        journal = durable.journal
        while True:
            past = await self._own_past(instance)
            # What it has taken of others is known elsewhere too then: it says so no more.
            await self.shelf.writer.settled()
            if past is None or instance.ended is not None or instance.guest is not guest:
                return
            if journal.is_safe and journal.size == past.size:  # nothing has come meanwhile
                break
        journal.replace(past.cut(state, durable.coming_key - 1, durable.clock_ns))
        self._registry.begin_again(instance)
        await self._begin_again(instance)

    async def _own_past(self, instance: Instance) -> Past | None:
        """The past in the journal of one that is alive; None if it has ended, or ends for that."""
        journal = durable_of(instance).journal
        with suppress(JournalLost):
            await journal.until_safe()
        if instance.state is not InstanceState.RUNNING or journal.problem is not None:
            return None
        try:
            past = await self._past(instance.id)
        except (DamagedJournal, OSError) as error:
            self._registry.fail(instance, f"internal: its journal cannot be read: {error}")
            return None
        return past if instance.state is InstanceState.RUNNING else None

    async def _begin_again(self, instance: Instance) -> None:
        before = durable_of(instance)
        past = await self._own_past(instance)
        if past is None:
            return
        # Others may send meanwhile.
        past.received |= dict.fromkeys(list(before.past.received)[-MOST_RECEIVED:])
        past.topics = before.past.topics
        past.children = before.past.children
        instance.durable = self._durable(instance, before.journal, past)
        await self._begin_life(instance)

    async def _begin_life(self, instance: Instance) -> None:
        while instance.state is InstanceState.RUNNING and instance.guest is None:
            try:
                await self._launcher.until_can_start(instance.program)
            except (ProgramRejected, OSError) as error:
                log.error("a durable instance cannot go on", instance=instance.id, why=str(error))
                why = error.strerror if isinstance(error, OSError) else error
                self._registry.fail(instance, f"internal: it cannot go on: {why}")
            except ApiError as error:  # the worker does not come back yet
                log.warning("durable instances wait", instance=instance.id, reason=str(error))
                continue
            if instance.state is InstanceState.RUNNING and instance.guest is None:
                self._launcher.begin(instance)

    # End

    def cannot_write(self, journal: Journal) -> None:
        """An instance ends by name whose journal cannot be written; that of the queues is again."""
        if journal is self._queues.journal:
            self._timers.call_later(RETRY_SECONDS, self._queues.write_again)
        instance = self._instances.get(journal)
        if instance is not None:
            self._registry.fail(
                instance, f"out-of-resources: its journal cannot be written: {journal.problem}"
            )

    def _on_end(self, instance: Instance) -> None:
        durable = instance.durable
        if durable is not None:
            durable.journal.when_safe(partial(self._close, instance, durable.journal))

    def _close(self, instance: Instance, journal: Journal) -> None:
        del self._instances[journal]
        assert instance.ended is not None
        self.shelf.end(instance.id, instance.ended.state.value, instance.ended.text)

    def _keep_result(self, instance: str, user: str, text: str) -> None:
        log.error("a durable instance does not go on", instance=instance, reason=text)
        failed = InstanceState.FAILED.value
        self._results.keep(StoredResult(instance, user, failed, text, self._date_ns()))


def _runtime(cache_folder: Path, kind: str) -> str:
    """The name of what runs programs of a kind; empty for components."""
    found = RUNTIMES.get(kind)
    return "" if found is None else found.runtime_file(cache_folder).name
