"""Launch, end and record of instances; what a breach, a kill or a lost worker means for them."""

from __future__ import annotations

import itertools
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from pie_control.errors import ApiError, ProgramRejected
from pie_control.instances.instance import ARGUMENT_OVERHEAD, Ended, Instance, State, argument_bytes
from pie_control.programs.code_cache import CodeCache
from pie_control.programs.components import Components
from pie_control.programs.warm import Spares
from pie_control.wasm import Engine, Guest, GuestLimits, Linker
from pie_py.config.server import ServerConfig

if TYPE_CHECKING:
    from pie_control.host import Host
    from pie_control.programs.store import Program, ProgramStore

log = structlog.get_logger("pie.lifecycle")

ENDED_KEPT = 2000  # ended instances whose results can still be asked for
ENDED_BYTES = 256 << 20  # of what is kept of them: messages not fetched, results, logs, arguments
MAX_ARGUMENT_BYTES = 1 << 20  # of one launch, all together
SWEEP_SECONDS = 1.0
MODEL_WAIT_SECONDS = 120.0


class Lifecycle:
    """Owns every instance from launch until its record is dropped."""

    def __init__(
        self, config: ServerConfig, engine: Engine, linker: Linker, programs: ProgramStore
    ) -> None:
        self._config = config
        self._linker = linker
        self.programs = programs
        self.codes = CodeCache()
        self._guest_limits = GuestLimits(
            memory_bytes=config.limits.memory, table_elements=config.limits.table_elements
        )
        self.spares = Spares(
            linker, self._guest_limits, config.spare_instances, lambda: bool(self._live)
        )
        self._components = Components(engine, config.cache_folder, self.spares.offer)
        self._numbers = itertools.count(1)
        self._random = random.Random()  # for names, which are no secrets
        self._live: dict[str, Instance] = {}
        self._ended: OrderedDict[str, Instance] = OrderedDict()
        self._ended_bytes = 0
        self._nursery: trio.Nursery | None = None
        self.host: Host  # set by the server once all parts are there
        self.models_ready = trio.Event()
        self.launched = 0

    # Programs

    async def prepare(self, program: Program) -> None:
        """Loads what a program runs in, compiling it off the event loop the first time.

        Raises:
            ProgramRejected: if it cannot run here.
        """
        await self._components.load(program)

    # Instances

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
        while not self.can_start(program):
            await self.prepare(program)
            with trio.move_on_after(MODEL_WAIT_SECONDS) as waited:
                await self.models_ready.wait()
            if waited.cancelled_caught:
                raise ApiError(
                    "worker-lost", "the inference worker does not come back; see its log"
                )
        return self.start(program, args, user, detached=detached, parent=parent)

    def can_start(self, program: Program) -> bool:
        """Whether `start` may be called: the code is loaded and a model is there."""
        return self.models_ready.is_set() and self._components.find(program) is not None

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
        component = self._components.find(program)
        assert component is not None
        check_arguments(args)
        if len(self._live) >= self._config.max_instances:
            raise ApiError(
                "limit-exceeded",
                f"{self._config.max_instances} instances are alive, the most this server runs;"
                " try again when some have ended",
            )
        if parent is not None and parent.state is not State.RUNNING:
            raise ApiError("cancelled", "the parent instance has ended")
        limits = self._config.limits
        instance = Instance(
            next(self._numbers),
            f"{program.name}-{self._random.getrandbits(32):08x}",
            program,
            args,
            user,
            limits,
            self.host,
            parent,
        )
        spare = self.spares.take(component, instance)
        instance.guest = spare or Guest(self._linker, component, instance, self._guest_limits)
        if spare is None:
            instance.guest.start(args)
        self._live[instance.id] = instance
        self.launched += 1
        self.host.messaging.join(instance)
        if parent is not None:
            parent.children.add(instance)
        if not detached and parent is None:
            instance.detached_at = trio.current_time()
        instance.wall_timer = self.host.timers.call_later(
            limits.wall_seconds,
            partial(
                self.end,
                instance,
                State.FAILED,
                f"limit-exceeded: {limits.wall_seconds:g} s of wall time are used up",
            ),
        )
        self.host.executor.add(instance)
        if spare is not None:
            self.host.executor.answer_late(instance, partial(self.source, instance))
        return instance

    def source(self, instance: Instance) -> tuple[str, str, str, list[str]]:
        """What the Python runtime is to run: file name, text, code if it was kept, and arguments."""
        return *self.programs.source(instance.program), self.codes.find(instance), instance.args

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
        scope = trio.CancelScope()
        child: Instance | None = None
        parent.starting += 1

        async def run() -> None:
            nonlocal child
            with scope:
                try:
                    child = await self.launch(program, args, parent.user, parent=parent)
                except ApiError as error:
                    done(error)
                except ProgramRejected as error:
                    done(ApiError("invalid-argument", f"{program.name} cannot run here: {error}"))
                except Exception as error:
                    log.exception("a child could not be launched", program=program.name)
                    done(ApiError("internal", f"{program.name} could not be launched: {error}"))
                finally:
                    parent.starting -= 1
                if child is not None:
                    if scope.cancel_called:  # while it was started, which nothing interrupts
                        kill()
                    await child.ended_event.wait()
                    assert child.ended is not None
                    done(child.ended)

        def kill() -> None:
            scope.cancel()
            if child is not None:
                self.kill(child, "its parent gave it up")

        self.start_soon(run)
        return kill

    def start_soon(self, run: Callable[[], Awaitable[None]]) -> None:
        """Starts a task that lives at most as long as the server."""
        assert self._nursery is not None
        self._nursery.start_soon(run)

    def end(self, instance: Instance, state: State, text: str) -> None:
        """Ends an instance: frees all it owned, tells its client, ends its children. Idempotent."""
        if instance.state is not State.RUNNING:
            return
        instance.state = state
        instance.ended = Ended(state, text)
        for child in list(instance.children):
            self.end(child, State.KILLED, "killed: its parent has ended")
        if instance.parent is not None:
            instance.parent.children.discard(instance)
        if instance.wall_timer is not None:
            instance.wall_timer.cancel()
        self.host.executor.discard(instance)
        if instance.guest is not None:
            instance.cpu_ns = instance.guest.cpu_ns
            instance.guest.close()
            instance.guest = None
        instance.futures.close()
        self.host.http.drop_instance(instance)
        self.host.messaging.leave(instance)
        for service in self.host.services.values():
            service.drop_instance(instance)
        instance.queues.clear()
        instance.spaces.clear()
        instance.grammars.close()
        instance.ended_ns = time.time_ns()
        instance.outbox.put(instance.ended, len(text), force=True)
        instance.ended_event.set()
        del self._live[instance.id]
        self._keep_ended(instance)
        if state is State.FAILED:
            log.info("instance failed", id=instance.id, user=instance.user, reason=text[:300])

    def _keep_ended(self, instance: Instance) -> None:
        """Keeps the record of an ended instance, within bounds: the oldest make room."""
        self._ended[instance.id] = instance
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        self._ended_bytes += instance.kept_bytes
        if self._ended_bytes > ENDED_BYTES:
            # What has been fetched or forgotten meanwhile was counted, too: count anew.
            self._ended_bytes = sum(i.kept_bytes for i in self._ended.values())
            for oldest in list(self._ended.values()):
                if self._ended_bytes <= ENDED_BYTES // 2:
                    break
                if not oldest.attached:
                    self._ended_bytes -= oldest.kept_bytes
                    oldest.outbox.drop_all_but_last()
                    del self._ended[oldest.id]

    def fail(self, instance: Instance, reason: str) -> None:
        """Ends an instance for a fault that is not its own."""
        self.end(instance, State.FAILED, reason)

    def kill(self, instance: Instance, reason: str) -> None:
        """Ends an instance from outside."""
        self.end(instance, State.KILLED, f"killed: {reason}")

    def instances(self, user: str | None = None) -> list[Instance]:
        """Live instances and those that ended lately, oldest launch first."""
        everyone = [*self._ended.values(), *self._live.values()]
        return sorted(
            (i for i in everyone if user is None or i.user == user), key=lambda i: i.number
        )

    def find(self, instance_id: str, user: str | None) -> Instance:
        """An instance of a user, alive or ended lately.

        Raises:
            ApiError: `not-found`.
        """
        instance = self._live.get(instance_id) or self._ended.get(instance_id)
        if instance is None or (user is not None and instance.user != user):
            raise ApiError(
                "not-found", f"no instance {instance_id!r} of yours is alive or ended lately"
            )
        return instance

    def reclaim(self, victims: Iterable[Instance], enough: Callable[[], bool]) -> bool:
        """First come, first served (Pie, section 5.2): ends victims in turn until `enough` says so.

        Returns whether there is enough now.
        """
        for victim in victims:
            if enough():
                break
            self.end(
                victim,
                State.KILLED,
                "out-of-resources: ended to free what an instance launched earlier needs",
            )
        return enough()

    # Background

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves children and sweeps up after vanished clients, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.spares.run)
            task_status.started()
            while True:
                await trio.sleep(SWEEP_SECONDS)
                self._sweep()
                if any(s.evictor and s.evictor.waits for s in self.host.services.values()):
                    self.host.executor.give_another()  # some may have waited long enough

    def _sweep(self) -> None:
        """Ends instances whose client has vanished, and forgets messages that nobody fetches."""
        now = trio.current_time()
        for instance in [*self._live.values(), *self._ended.values()]:
            since = instance.detached_at
            if since is None or now - since <= instance.limits.detached_seconds:
                continue
            instance.detached_at = None
            if instance.state is State.RUNNING:
                self.kill(
                    instance, f"its client has been gone for {instance.limits.detached_seconds:g} s"
                )
            else:
                instance.outbox.drop_all_but_last()

    def end_all(self, reason: str) -> None:
        """Ends every instance: the server stops."""
        for instance in list(self._live.values()):
            self.kill(instance, reason)

    def end_users_of(self, model: str, reason: str) -> None:
        """Ends the instances that hold something of a model whose worker was lost."""
        for instance in list(self._live.values()):
            held = model in instance.spaces or any(
                queue.service.description.name == model for queue in instance.queues.values()
            )
            if held:
                self.end(instance, State.FAILED, f"worker-lost: {reason}")

    @property
    def live_count(self) -> int:
        """Instances alive."""
        return len(self._live)


def check_arguments(args: list[str]) -> None:
    """Refuses arguments that are too large, or too many.

    Raises:
        ApiError: `limit-exceeded`.
    """
    if argument_bytes(args) > MAX_ARGUMENT_BYTES:
        raise ApiError(
            "limit-exceeded",
            f"the arguments have more than {MAX_ARGUMENT_BYTES} characters, {ARGUMENT_OVERHEAD} more"
            " counted for each; send large data as messages",
        )
