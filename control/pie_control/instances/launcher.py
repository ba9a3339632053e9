"""Launches instances: loads what a program runs in, makes its guest, starts children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

import structlog
import trio

from pie_control.errors import ApiError, NoRoom, ProgramRejected
from pie_control.instances.instance import (
    ARGUMENT_OVERHEAD,
    Ended,
    Fence,
    Instance,
    State,
    argument_bytes,
)
from pie_control.instances.registry import Registry
from pie_control.instances.turns import Executor
from pie_control.programs.code_cache import CodeCache
from pie_control.programs.store import Program, ProgramStore
from pie_control.timers import Timer, Timers
from pie_control.wasm import Guest

log = structlog.get_logger("pie.launcher")

MAX_ARGUMENT_BYTES = 1 << 20  # of one launch, all together
MODEL_WAIT_SECONDS = 120.0


class GuestMaker(Protocol):
    """Makes the guests of programs."""

    async def prepare(self, program: Program) -> None:
        """Loads what a program runs in; raises `ProgramRejected`."""

    def is_prepared(self, program: Program) -> bool:
        """Whether `start` may be called for a program."""

    def start(self, program: Program, state: object, args: list[str]) -> tuple[Guest, bool]:
        """A guest whose first turn is to come, and whether it waits for its source."""

    async def run(self) -> None:
        """Keeps warm guests ready."""


class Child(Protocol):
    """A child that runs, here or on another node."""

    async def end(self) -> Ended | ApiError:
        """Waits for its end; an error if it is lost with its node."""

    def kill(self) -> None:
        """Ends it, because its parent gave it up."""


# Launches a child on another node, when there is no room here; raises ApiError, or what it is given
# if there is room nowhere.
Elsewhere: TypeAlias = Callable[[Instance, Program, list[str], NoRoom], Awaitable[Child]]


class Launcher:
    """Starts instances once the code of their program is loaded and a model is there."""

    def __init__(
        self,
        registry: Registry,
        executor: Executor,
        timers: Timers,
        programs: ProgramStore,
        guests: GuestMaker,
        clock: Callable[[], float],
    ) -> None:
        self.models_ready = trio.Event()  # set as long as there are models
        self.codes = CodeCache()
        self.prepare = guests.prepare
        self.elsewhere: Elsewhere | None = None  # in a cluster
        self._registry = registry
        self._executor = executor
        self._timers = timers
        self._programs = programs
        self._guests = guests
        self._clock = clock
        self._wall_timers: dict[Instance, Timer] = {}
        self._starting: Counter[Instance] = Counter()  # children not launched yet, by parent
        self._waiting: Counter[str] = Counter()  # children that run nowhere yet, by user
        self._nursery: trio.Nursery | None = None  # of the tasks that wait for children
        # By user: only one child of each is made at a time.
        self._one_child: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        registry.on_end.append(self._on_end)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps warm guests ready, and serves parents that wait for children, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._guests.run)
            task_status.started()
            await trio.sleep_forever()

    def models_lost(self) -> None:
        """No model is there any more: launches wait for the next worker."""
        self.models_ready = trio.Event()

    def find(self, name: str, user: str) -> Program:
        """A program by the user's name for it, or by its hash; as `ProgramStore.find`."""
        return self._programs.find(name, user)

    async def launch(
        self,
        program: Program,
        args: list[str],
        user: str,
        *,
        detached: bool = False,
        parent: Instance | None = None,
    ) -> Instance:
        """Starts an instance, after waiting for its code and for a model where that is needed.

        Raises:
            ApiError: as `start`; `worker-lost` if no model comes.
            ProgramRejected: if the program cannot run here.
        """
        await self.until_can_start(program)
        return self.start(program, args, user, detached=detached, parent=parent)

    async def until_can_start(self, program: Program) -> None:
        """Waits until `start` may be called.

        Raises:
            ApiError: `worker-lost` if no model comes.
            ProgramRejected: if the program cannot run here.
        """
        while not self.can_start(program):
            await self._guests.prepare(program)
            with trio.move_on_after(MODEL_WAIT_SECONDS) as waited:
                await self.models_ready.wait()
            if waited.cancelled_caught:
                raise ApiError(
                    "worker-lost", "the inference worker does not come back; see its log"
                )

    def can_start(self, program: Program) -> bool:
        """Whether `start` may be called: the code is loaded and a model is there."""
        return self.models_ready.is_set() and self._guests.is_prepared(program)

    def start(
        self,
        program: Program,
        args: list[str],
        user: str,
        *,
        detached: bool = False,
        parent: Instance | None = None,
        fence: Fence | None = None,
    ) -> Instance:
        """Starts an instance and returns it at once; its first turn comes with the next ones.

        Only where `can_start` says so.

        Raises:
            ApiError: `limit-exceeded` if too many are alive, or the arguments are too large.
        """
        check_arguments(args)
        instance = self._registry.create(program, args, user, parent=parent, fence=fence)
        instance.guest, is_warm = self._guests.start(program, instance, args)
        self._registry.add(instance)
        self._programs.used(program)
        if not detached and parent is None:
            instance.client.left_at = self._clock()
        self._limit_wall_time(instance)
        self._executor.add(instance)
        if is_warm:
            self._executor.answer_late(instance, partial(self.source, instance))
        return instance

    def source(self, instance: Instance) -> tuple[str, str, str, list[str]]:
        """What the Python runtime runs: file name, text, code if it was kept, and arguments."""
        code = self.codes.find(instance, instance.program)
        return *self._programs.source(instance.program), code, instance.args

    def _limit_wall_time(self, instance: Instance) -> None:
        seconds = instance.limits.wall_seconds
        text = (
            f"limit-exceeded: {seconds:g} s of wall time are used up: the program waits for what"
            " does not come, or needs a higher limits.wall_seconds"
        )
        end = partial(self._registry.end, instance, State.FAILED, text)
        self._wall_timers[instance] = self._timers.call_later(seconds, end)

    def _on_end(self, instance: Instance) -> None:
        timer = self._wall_timers.pop(instance, None)
        if timer is not None:
            timer.cancel()

    # Children

    def children_of(self, instance: Instance) -> int:
        """Children of an instance that are alive or about to be."""
        return self._registry.children_of(instance) + self._starting[instance]

    def check_waiting(self, user: str) -> None:
        """Refuses a child where as many of the user are about to start as instances may be alive.

        Raises:
            ApiError: `limit-exceeded`.
        """
        if self._waiting[user] >= self._registry.most:
            raise ApiError(
                "limit-exceeded",
                f"{self._registry.most} children of your instances are about to start, as many as"
                " this server runs instances; try again when some have started",
            )

    async def _launch_child(self, parent: Instance, program: Program, args: list[str]) -> Child:
        await self.until_can_start(program)  # which may take long, so before it holds up others
        one = self._one_child.setdefault(parent.user, trio.Lock())
        try:
            async with one:  # others have their turns between two of a user
                instance = await self.launch(program, args, parent.user, parent=parent)
        except NoRoom as error:
            if self.elsewhere is None:
                raise
            return await self.elsewhere(parent, program, args, error)
        return _ChildHere(self._registry, instance)

    def start_child(
        self,
        parent: Instance,
        program: Program,
        args: list[str],
        done: Callable[[Ended | ApiError], None],
    ) -> Callable[[], None]:
        """Launches a child in the background. Returns what kills it.

        Args:
            parent: it ends with this one.
            program: what it runs.
            args: its arguments.
            done: called once with its end, or why it could not be launched; not if it was killed by
                what is returned.
        """
        assert self._nursery is not None, "the launcher runs"
        child = _ChildTask(partial(self._launch_child, parent, program, args))
        self._starting[parent] += 1
        self._waiting[parent.user] += 1

        def launched() -> None:
            self._waiting[parent.user] -= 1
            if not self._waiting[parent.user]:
                del self._waiting[parent.user]

        def started() -> None:
            self._starting[parent] -= 1
            if not self._starting[parent]:
                del self._starting[parent]

        self._nursery.start_soon(child.run, program.name, launched, started, done)
        return child.kill


class _ChildHere:
    """A child on this node, which ends with its parent."""

    def __init__(self, registry: Registry, instance: Instance) -> None:
        self._registry = registry
        self._instance = instance

    async def end(self) -> Ended | ApiError:
        """As `Child.end`."""
        await self._instance.ended_event.wait()
        assert self._instance.ended is not None
        return self._instance.ended

    def kill(self) -> None:
        """As `Child.kill`."""
        self._registry.kill(self._instance, "its parent gave it up")


class _ChildTask:
    """The task that launches one child and waits for its end."""

    def __init__(self, launch: Callable[[], Awaitable[Child]]) -> None:
        self._launch = launch
        self._scope = trio.CancelScope()
        self._child: Child | None = None

    async def run(
        self,
        name: str,
        launched: Callable[[], None],
        started: Callable[[], None],
        done: Callable[[Ended | ApiError], None],
    ) -> None:
        """Launches the child and waits for its end.

        Calls `launched` once it runs, here or elsewhere, or cannot be launched; `started` once it
        counts among those of this node, cannot be launched or has ended; and `done` with its end or
        the error.
        """
        counts_here = True
        with self._scope:
            try:
                self._child = await self._launch()
                counts_here = isinstance(self._child, _ChildHere)
            except ApiError as error:
                done(error)
            except ProgramRejected as error:
                done(ApiError("invalid-argument", f"{name} cannot run here: {error}"))
            except Exception as error:
                log.exception("a child could not be launched", program=name)
                done(ApiError("internal", f"{name} could not be launched: {error}"))
            finally:
                launched()
                if counts_here:
                    started()
            if self._child is not None:
                if self._scope.cancel_called:  # while it was started, which nothing interrupts
                    self.kill()
                done(await self._child.end())
        if not counts_here:
            started()

    def kill(self) -> None:
        """Ends the child, or its launch; nothing is called afterwards."""
        self._scope.cancel()
        if self._child is not None:
            self._child.kill()


def check_arguments(args: list[str]) -> None:
    """Refuses arguments that are too large, or too many.

    Raises:
        ApiError: `limit-exceeded`.
    """
    if argument_bytes(args) > MAX_ARGUMENT_BYTES:
        raise ApiError(
            "limit-exceeded",
            f"the arguments have more than {MAX_ARGUMENT_BYTES} characters,"
            f" {ARGUMENT_OVERHEAD} more counted for each; send large data as messages",
        )
