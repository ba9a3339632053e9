"""Durable instances: launched, going on after a crash or on request, and branched off."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
import trio

from pie_control.durable.shelf import Ended, Shelf
from pie_control.errors import ApiError, ProgramRejected, Refusal, Shortage
from pie_control.instances.durable import Durable
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.instances.launcher import Launcher
from pie_control.instances.registry import Registry
from pie_control.instances.result_store import ResultStore, StoredResult
from pie_control.journal.file import (
    FORMAT,
    DamagedJournal,
    Journal,
    JournalLost,
    Writer,
    framed,
    read_entries,
)
from pie_control.journal.past import Past, head_of, up_to
from pie_control.programs.store import Program, is_hash
from pie_control.shares import Shares
from pie_control.tasks import Service
from pie_py import __version__
from pie_py.build.runtimes import RUNTIMES
from pie_py.config.services import DurableConfig
from pie_py.config.shipped_files import contract_version

log = structlog.get_logger("pie.durable")

RETRY_SECONDS = 1.0  # between tries to have room for one that goes on
MOST_CALLS = 1000  # that are told at once
SHORT = 120  # characters of an answer
LOOK_SECONDS = 600.0  # between looks for journals that are old


class Shared(Protocol):
    """Copies of journals in the database of a cluster, of which each is one node's at a time."""

    async def create(self, instance: str, user: str, data: bytes) -> None:
        """Makes one. Raises ApiError: `busy`; JournalLost: it may be there."""

    def hold(self, journal: Journal, instance: str) -> None:
        """What is written to a journal from now on is to be in its copy. Raises JournalLost."""

    async def write(self, parts: list[tuple[Journal, bytes]]) -> bool:
        """Appends to copies; False if they are another node's."""

    async def read(self, instance: str) -> bytes | None:
        """What one has, whosever it is. Raises ApiError: `busy`."""

    async def rewind(self, instance: str, data: bytes) -> None:
        """Has one that has ended go on here, from this beginning. Raises ApiError: `busy`."""

    def found(self) -> AsyncIterator[tuple[str, bytes]]:
        """Those that no node had, and this one has from now on."""

    def release(self, instance: str) -> None:
        """Another node may have one that was found and has not begun here."""

    def end(self, instance: str, state: str, text: str) -> None:
        """An instance has ended."""

    def remove(self, instance: str) -> None:
        """Removes one."""

    async def result(self, instance: str, user: str | None) -> StoredResult | None:
        """How an instance of a user has ended, if it has."""


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
        date_ns: Callable[[], int],
    ) -> None:
        """Takes the folder of journals, None where there can be none: in a cluster without a
        database.
        """
        self._config = config
        self._enabled = folder is not None
        self._cache_folder = cache_folder
        self._registry = registry
        self._launcher = launcher
        self._results = results
        self._date_ns = date_ns
        self._writer = Writer(self._cannot_write)
        self.shelf = Shelf(folder or Path(), self._writer, date_ns)
        self._share = shares.add("bytes of journals", config.bytes, self.shelf.bytes_of)
        self._shared: Shared | None = None
        self._fetch: Callable[[str, str], Awaitable[None]] | None = None
        self._instances: dict[Journal, Instance] = {}  # alive
        registry.on_end.append(self._on_end)

    def share(self, shared: Shared, fetch: Callable[[str, str], Awaitable[None]]) -> None:
        """Has copies of journals that other nodes of a cluster may go on with. `fetch` has a
        program here, by its hash and for a user.
        """
        self._shared, self._fetch, self._writer.replicate = shared, fetch, shared.write
        self.shelf.on_remove = shared.remove

    def lose(self, reason: str) -> None:
        """Other nodes may have the instances from now on."""
        for journal, instance in list(self._instances.items()):
            self._results.unfollow(instance)
            journal.wrote(0, JournalLost(reason))
            self._registry.fail(instance, reason)

    async def result(self, instance: str, user: str | None) -> StoredResult | None:
        """How an instance of a user has ended that is not known here. Raises ApiError: `busy`."""
        return None if self._shared is None else await self._shared.result(instance, user)

    def wants(self, program: str) -> bool:
        """True if the configuration says that a program's instances are durable."""
        return program in self._config.programs

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Has the instances of a server before this one go on, and writes, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            await nursery.start(self._writer.run)
            if self._shared is not None:
                nursery.start_soon(self._take_over, self._shared)
            elif self._enabled:
                found = await trio.to_thread.run_sync(lambda: list(self.shelf.read_all()))
                for instance, past, problem in found:
                    self._find(instance, past, problem)
            if self._enabled:
                nursery.start_soon(self._look)
            task_status.started()

    async def _look(self) -> None:
        while True:
            self.shelf.drop_old(self._config.keep_seconds)
            await trio.sleep(LOOK_SECONDS)

    # Begin

    async def launch(self, program: Program, args: list[str], user: str) -> Instance:
        """Starts a durable instance, whose journal is on disk then.

        Raises:
            ApiError: `limit-exceeded`, `out-of-resources`, `unsupported`, `worker-lost`.
            ProgramRejected: if the program cannot run here.
        """
        await self._launcher.until_can_start(program)
        return await self._begin(program, args, user, [])

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
            ApiError: as `launch`; `not-found`.
        """
        entries = await self._entries(instance, user)
        head = head_of(entries)
        await self._have(program or head["hash"], head["user"])
        found = self._launcher.find(program or head["hash"], head["user"])
        await self._launcher.until_can_start(found)
        kept = up_to(entries, call)
        said = sum(entry[0] == "said" and bool(entry[3]) for entry in kept)
        said += sum(
            entry[:2] in (["call", "session.send"], ["call", "session.send-blob"]) and entry[3]
            for entry in kept
        )
        return await self._begin(
            found,
            head["args"] if args is None else args,
            head["user"],
            [*kept, ["acked", said]],
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
        if self._shared is not None:
            await self._have(past.head["hash"], past.head["user"])
            data = b"".join(map(framed, kept))
            await self._shared.rewind(instance, data)
            await trio.to_thread.run_sync(self.shelf.put, instance, data)
        self._registry.forget(instance)
        return self._alive(instance, past)

    async def calls(self, instance: str, user: str | None, after: int) -> list[dict[str, Any]]:
        """The calls in a journal, behind the first ones. Raises ApiError `not-found`."""
        entries = await self._entries(instance, user)
        made = [entry for entry in entries[1:] if entry[0] in ("call", "fails")]
        return [
            {"number": after + place, "call": entry[1], "answer": str(entry[-1])[:SHORT]}
            for place, entry in enumerate(made[after : after + MOST_CALLS], 1)
        ]

    async def _entries(self, instance: str, user: str | None) -> list[Any]:
        """What the journal of an instance has, alive or ended."""
        self._check_enabled()
        for journal, found in list(self._instances.items()):
            if found.id == instance:
                await journal.until_safe()
        if self._shared is None or self.shelf.path(instance).exists():
            return await trio.to_thread.run_sync(self.shelf.entries, instance, user)
        return self.shelf.entries_of(instance, await self._shared.read(instance) or b"", user)

    async def _begin(
        self, program: Program, args: list[str], user: str, entries: list[Any], **facts: Any
    ) -> Instance:
        self._check_enabled()
        self.shelf.make_room(user, lambda: self._share.is_full(user))
        if self._share.is_full(user):
            raise Shortage(
                f"your journals have {self._share.has(user)} bytes, as many as one user may have"
                " here: wait until others of your durable instances have ended, or end some"
            )
        name = self._registry.new_name(program)
        head = self._head(program, args, user) | facts
        size = await trio.to_thread.run_sync(self.shelf.create, name, head, entries)
        try:
            if self._shared is not None:
                data = self.shelf.path(name).read_bytes()
                await self._shared.create(name, user, data)
            return self._alive(name, Past.of([head, *entries], size), is_new=True)
        except (ApiError, JournalLost):
            self.shelf.remove(name)
            raise

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise ApiError(
                "unsupported",
                "durable instances of a cluster need a database: set server.store.database in"
                " cluster.toml",
            )

    def _head(self, program: Program, args: list[str], user: str) -> dict[str, Any]:
        return {
            "journal": FORMAT,
            "pie_py": __version__,
            "contract": contract_version(),
            "user": user,
            "program": program.name,
            "hash": program.hash,
            "runtime": self._runtime(program),
            "args": args,
            "secret": secrets.token_hex(16),  # seeds of samplers come from it
            "created_ns": self._date_ns(),
        }

    def _runtime(self, program: Program) -> str:
        found = RUNTIMES.get(program.kind)
        return "" if found is None else found.runtime_file(self._cache_folder).name

    # Go on

    def _find(self, instance: str, past: Past | dict[str, Any], problem: str) -> None:
        """An instance of a server before this one."""
        if isinstance(past, dict):
            user = past.get("user", "")
            self._keep_result(instance, user, f"internal: its journal is damaged: {problem}")
        elif past.end is not None:
            self._restore(instance, past)
        else:
            self._start_task(self._until_alive, instance, past)

    def _restore(self, instance: str, past: Past) -> None:
        """The record of one that had ended: its client may lack messages."""
        assert past.end is not None
        state, text, time_ns = past.end
        head = past.head
        self.shelf.has_ended(Ended(instance, head["user"], past.size, time_ns))
        try:
            made = self._made(instance, past)
        except ApiError as error:
            log.info("a record is lost", instance=instance, reason=str(error))
            return
        made.ended = InstanceEnded(InstanceState(state), text, time_ns)
        self._registry.add_ended(made)

    async def _take_over(self, shared: Shared) -> None:
        """Goes on with what no node has."""
        async for instance, data in shared.found():
            try:
                await trio.to_thread.run_sync(self.shelf.put, instance, data)
                past = Past.of(*read_entries(data))
            except DamagedJournal as error:
                head = error.entries[0] if error.entries else {}
                self._find(instance, head if isinstance(head, dict) else {}, str(error))
            except OSError as error:
                log.error("a journal cannot be kept here", instance=instance, reason=str(error))
                shared.release(instance)
            else:
                self._start_task(self._take_one, shared, instance, past)

    async def _take_one(self, shared: Shared, instance: str, past: Past) -> None:
        try:
            await self._have(past.head["hash"], past.head["user"])
        except (ApiError, Refusal) as error:
            if error.code != "busy":
                self._find(instance, past.head, str(error))
                return
            log.warning("an instance waits for its program", instance=instance, reason=str(error))
            shared.release(instance)
            return
        if past.end is None:
            self._registry.forget(instance)  # it has ended here before
        else:  # its node may not have noted that
            shared.end(instance, past.end[0], past.end[1])
            if self._registry.knows(instance):
                return
        self._find(instance, past, "")

    async def _have(self, program: str, user: str) -> None:
        """Has a program here, by its hash. Raises ApiError, Refusal."""
        if self._fetch is not None and is_hash(program):
            await self._fetch(program, user)

    async def _until_alive(self, instance: str, past: Past) -> None:
        """Has one go on, once there is room for it here; of a cluster's another node may have it
        meanwhile.
        """
        while True:
            try:
                self._check(past)
                self._alive(instance, past)
                return
            except JournalLost:
                return
            except Shortage:
                await trio.sleep(RETRY_SECONDS)
                if self._shared is not None:
                    self._shared.release(instance)
                    return
            except (ApiError, OSError) as error:
                user = past.head["user"]
                self._keep_result(instance, user, f"internal: it cannot go on: {error}")
                return

    def _check(self, past: Past) -> None:
        """Refuses what would depart from its journal. Raises ApiError."""
        head = past.head
        if head["contract"] != contract_version():
            raise ApiError(
                "unsupported",
                f"it began with contract {head['contract']}, and this server has"
                f" {contract_version()}; a `branch` may go on",
            )
        program = self._launcher.find(head["hash"], head["user"])
        if head["runtime"] != self._runtime(program):
            raise ApiError(
                "unsupported",
                f"it began with the runtime {head['runtime']} of pie_py {head['pie_py']}, and this"
                " server has another one; a `branch` may go on",
            )

    def _made(self, instance: str, past: Past, *, is_new: bool = False) -> Instance:
        """An instance as its journal has it, without a guest. Raises ApiError."""
        head = past.head
        program = self._launcher.find(head["hash"], head["user"])
        made = self._registry.create(
            program, head["args"], head["user"], name=instance, again=not is_new
        )
        made.created_ns = head["created_ns"]
        made.first_item = past.acked
        boxes: tuple[tuple[Any, list[Any]], ...] = (
            (made.outbox, past.outbox[past.acked :]),
            (made.texts, past.texts),
            (made.blobs, past.blobs),
        )
        for box, messages in boxes:
            for message in messages:
                box.put(message, force=True)
        return made

    def _alive(self, name: str, past: Past, *, is_new: bool = False) -> Instance:
        """Has an instance be alive, and begin a life. Raises ApiError, OSError."""
        instance = self._made(name, past, is_new=is_new)
        journal = self.shelf.open(name, instance.user, past.size)
        if self._shared is not None:
            try:
                self._shared.hold(journal, name)
            except JournalLost as error:
                journal.problem = error
                self.shelf.end(name)
                raise
        self._instances[journal] = instance
        instance.durable = self._durable(instance, journal, past)
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
        """What instances had at the worker is gone: they begin another life."""
        for journal, instance in list(self._instances.items()):
            if instance.state is InstanceState.RUNNING:
                self._registry.begin_again(instance)
                self._start_task(self._begin_again, instance, journal)

    async def _begin_again(self, instance: Instance, journal: Journal) -> None:
        await journal.until_safe()
        if instance.state is not InstanceState.RUNNING or journal.problem is not None:
            return
        before = instance.durable
        assert before is not None
        past = await trio.to_thread.run_sync(Past.read, journal.path)
        past.received = before.past.received  # its client may send meanwhile
        instance.durable = self._durable(instance, journal, past)
        await self._begin_life(instance)

    async def _begin_life(self, instance: Instance) -> None:
        while instance.state is InstanceState.RUNNING and instance.guest is None:
            try:
                await self._launcher.until_can_start(instance.program)
            except ProgramRejected as error:
                self._registry.fail(instance, f"internal: it cannot go on: {error}")
            except ApiError as error:  # the worker does not come back yet
                log.warning("durable instances wait", instance=instance.id, reason=str(error))
                continue
            if instance.state is InstanceState.RUNNING and instance.guest is None:
                self._launcher.begin(instance)

    # End

    def _cannot_write(self, journal: Journal) -> None:
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
        self.shelf.end(instance.id)
        if self._shared is not None and not journal.is_lost:
            assert instance.ended is not None
            self._shared.end(instance.id, instance.ended.state.value, instance.ended.text)

    def _keep_result(self, instance: str, user: str, text: str) -> None:
        log.error("a durable instance does not go on", instance=instance, reason=text)
        failed = InstanceState.FAILED.value
        if self._shared is not None:
            self._shared.end(instance, failed, text)
        self._results.keep(StoredResult(instance, user, failed, text, self._date_ns()))
