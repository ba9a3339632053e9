"""Launches instances: loads what a program runs in, makes its guest, starts children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import structlog
import trio

from pie_control.errors import ApiError, ProgramRejected, Shortage, exceeded, invalid
from pie_control.instances.instance import (
    ARGUMENT_OVERHEAD,
    Instance,
    InstanceEnded,
    InstanceState,
    argument_bytes,
)
from pie_control.instances.registry import Registry
from pie_control.instances.turns import Executor
from pie_control.programs.guests import CodeCache, Guests
from pie_control.programs.store import Program, ProgramStore
from pie_control.tasks import Service, take_off
from pie_control.timers import Timer, Timers
from pie_py.config.processes import LOAD_SECONDS
from pie_py.wire.rpc import MAX_ARGUMENT_BYTES

log = structlog.get_logger("pie.launcher")


Done: TypeAlias = Callable[[InstanceEnded | ApiError], None]
DurableLaunch: TypeAlias = Callable[[Instance, Program, list[str], Done], Callable[[], None]]


class Launcher(Service):
    """Starts instances once the code of their program is loaded and a model is there."""

    def __init__(
        self,
        registry: Registry,
        executor: Executor,
        timers: Timers,
        programs: ProgramStore,
        guests: Guests,
        clock: Callable[[], float],
    ) -> None:
        self.models_ready = trio.Event()  # set as long as there are models
        self.codes = CodeCache()
        self.prepare = guests.prepare
        self.launch_durably: DurableLaunch | None = None  # children of durable instances
        self._registry = registry
        self._executor = executor
        self._timers = timers
        self._programs = programs
        self._guests = guests
        self._clock = clock
        self._wall_timers: dict[Instance, Timer] = {}
        self._starting: Counter[Instance] = Counter()  # children not launched yet, by parent
        self._waiting: Counter[str] = Counter()  # children that run nowhere yet, by user
        self._children: dict[Instance, _Child] = {}  # that run here
        registry.on_drop.append(self._on_drop)
        registry.on_end.append(self._on_end)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps warm guests ready, and serves parents that wait for children, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guests.run)
            await super().run(task_status)

    def models_lost(self) -> None:
        """No model is there any more: launches wait for the next worker."""
        self.models_ready = trio.Event()

    def find(self, name: str, user: str) -> Program:
        """A program by the user's name for it, or by its hash; as `ProgramStore.find`."""
        return self._programs.find(name, user)

    async def until_can_start(self, program: Program) -> None:
        """Waits until `start` may be called.

        Raises:
            ApiError: `worker-lost` if no model comes.
            ProgramRejected: if the program cannot run here.
        """
        while not self.can_start(program):
            await self._guests.prepare(program)
            with trio.move_on_after(LOAD_SECONDS) as waited:
                await self.models_ready.wait()
            if waited.cancelled_caught:
                raise ApiError(
                    "worker-lost", "the inference worker does not come back; see its log"
                )

    def can_start(self, program: Program) -> bool:
        """True if `start` may be called: the code is loaded and a model is there."""
        return self.models_ready.is_set() and self._guests.is_prepared(program)

    def start(
        self,
        program: Program,
        args: list[str],
        user: str,
        *,
        detached: bool = False,
        parent: Instance | None = None,
    ) -> Instance:
        """Starts an instance and returns it at once; its first turn comes with the next ones.

        Only where `can_start` says so.

        Raises:
            ApiError: `limit-exceeded` if too many are alive, or the arguments are too large.
        """
        check_arguments(args)
        instance = self._registry.create(program, args, user, parent=parent)
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

    def begin(self, instance: Instance) -> None:
        """Gives a durable instance, which is alive, the guest of another life."""
        instance.guest = self._guests.start_durable(instance.program, instance, instance.args)
        self._programs.used(instance.program)
        self._limit_wall_time(instance)
        self._executor.add(instance)

    def source(self, instance: Instance) -> tuple[str, str, str, list[str]]:
        """The program of a Python runtime: file name, text, code from the cache, arguments."""
        code = self.codes.find(instance, instance.program)
        return *self._programs.source(instance.program), code, instance.args

    def _limit_wall_time(self, instance: Instance) -> None:
        seconds = instance.limits.wall_seconds
        text = (
            f"limit-exceeded: {seconds:g} s of wall time are used up: the program waits for what"
            " does not come, or needs a higher limits.wall_seconds"
        )
        end = partial(self._registry.end, instance, InstanceState.FAILED, text)
        self._wall_timers[instance] = self._timers.call_later(seconds, end)

    def _on_drop(self, instance: Instance) -> None:
        timer = self._wall_timers.pop(instance, None)
        if timer is not None:
            timer.cancel()

    def _on_end(self, instance: Instance) -> None:
        child = self._children.pop(instance, None)
        if child is not None and instance.ended is not None:
            child.finish(instance.ended)

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
            raise Shortage(
                f"{self._registry.most} children of your instances are about to start, as many as"
                " this server runs instances"
            )

    def start_child(
        self, parent: Instance, program: Program, args: list[str], done: Done
    ) -> Callable[[], None]:
        """Launches a child in a later turn, at its user's cost; it ends with its parent. Returns
        what kills it.

        `done` is called once with its end, or why it could not be launched; not if it was killed by
        what is returned.
        """
        if parent.durable is not None and self.launch_durably is not None:
            return self.launch_durably(parent, program, args, done)
        child = _Child(parent, program, args, done)
        self._starting[parent] += 1
        self._waiting[parent.user] += 1
        self._make_later(child)
        return partial(self._give_up, child)

    def _make_later(self, child: _Child) -> None:
        if self.can_start(child.program):
            self._executor.do_later(child.parent.owner, partial(self._make, child))
        else:
            self._start_task(self._prepare, child)

    def _make(self, child: _Child) -> None:
        if child.done is None:  # given up
            return
        if not self.can_start(child.program):  # the worker was lost meanwhile
            self._make_later(child)
            return
        parent = child.parent
        try:
            instance = self.start(child.program, child.args, parent.user, parent=parent)
        except Exception as error:  # noqa: BLE001  a child's end, whatever it is
            self._over(child, _refusal(child, error))
        else:
            child.instance = instance
            self._children[instance] = child
            self._is_started(child)

    async def _prepare(self, child: _Child) -> None:
        with child.scope:
            try:
                await self.until_can_start(child.program)
                self._make_later(child)
            except Exception as error:  # noqa: BLE001  a child's end, whatever it is
                self._over(child, _refusal(child, error))

    def _is_started(self, child: _Child) -> None:
        """A child counts among the instances of this node, or does not run."""
        if child.is_starting:
            child.is_starting = False
            take_off(self._starting, child.parent)
            take_off(self._waiting, child.parent.user)

    def _over(self, child: _Child, end: InstanceEnded | ApiError) -> None:
        self._is_started(child)
        child.finish(end)

    def _give_up(self, child: _Child) -> None:
        """Ends a child, or its launch."""
        child.done = None
        child.scope.cancel()
        self._is_started(child)
        if child.instance is not None:
            self._registry.kill(child.instance, "its parent gave it up")


class _Child:
    """A child of an instance, from the call that launches it on."""

    def __init__(self, parent: Instance, program: Program, args: list[str], done: Done) -> None:
        self.parent = parent
        self.program = program
        self.args = args
        self.done: Done | None = done  # None once it is of no use
        self.is_starting = True  # does not count among the instances of this node yet
        self.scope = trio.CancelScope()  # of the task that waits for it, where there is one
        self.instance: Instance | None = None  # that it is

    def finish(self, end: InstanceEnded | ApiError) -> None:
        """Gives its parent its end, unless it was given up."""
        done, self.done = self.done, None
        if done is not None:
            done(end)


def _refusal(child: _Child, error: Exception) -> ApiError:
    """The error that a child cannot be launched, for its parent."""
    if isinstance(error, ApiError):
        return error
    name = child.program.name
    if isinstance(error, ProgramRejected):
        return invalid(f"{name} cannot run here: {error}")
    log.error("a child could not be launched", program=name, exc_info=error)
    return ApiError("internal", f"{name} could not be launched: {error}")


def check_arguments(args: list[str]) -> None:
    """Refuses arguments that are too large, or too many. Raises ApiError `limit-exceeded`."""
    if argument_bytes(args) > MAX_ARGUMENT_BYTES:
        raise exceeded(
            f"the arguments have more than {MAX_ARGUMENT_BYTES} characters, {ARGUMENT_OVERHEAD}"
            " more counted for each; send large data as messages"
        )
