"""Guests that programs run in: instantiated by a thread, some ahead of need, and warm ones.

A component that componentize-py has made takes 0.7 ms to instantiate: 40 core instances, and a
table of 7 000 functions, which Wasmtime fills one by one. No code of the guest runs and no page of
its image is written to, so it needs neither the thread of the guests nor much memory. Of many
launches at once, those whose turn is far are instantiated while the first ones run.

Starting CPython takes milliseconds of the one thread that runs all guests: the component is
instantiated, and every page that it writes to is copied. A warm instance has that behind it when a
launch claims it. It runs one program and ends with it, like any other guest; none is reused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

import structlog
import trio
from cachetools import LRUCache

from pie_control.errors import ProgramRejected, invalid
from pie_control.programs.components import Components
from pie_control.programs.store import Program
from pie_control.wasm.engine import Component, GuestLimits
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import Linker
from pie_control.wasm.trap import GuestTrap

log = structlog.get_logger("pie.warm")


class Unclaimed:
    """The state of a guest that no launch has claimed yet."""


class Instantiation:
    """Makes guests with the same limits; those of one component with the help of a thread."""

    def __init__(self, linker: Linker, limits: GuestLimits, ahead: int) -> None:
        """Takes how many guests are made ahead of need; they take places of the engine."""
        self._linker = linker
        self._limits = limits
        self._ahead = ahead
        self._component: Component | None = None
        self._made: deque[Guest] = deque()
        self._launched: deque[Guest] = deque()  # that had had no turn when they were launched
        self._wanted = threading.Semaphore(0)  # guests to instantiate, at the most
        self._stopped = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._made)

    def offer(self, component: Component) -> None:
        """The thread instantiates guests of this component from now on."""
        if not self._ahead:
            return
        self._component = component
        self._wanted.release(self._ahead)
        if self._thread is None:
            name = "wasm-instantiation"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def guest(self, component: Component, state: object) -> Guest:
        """A guest that is yet to be started.

        Raises:
            ProgramRejected: if the component imports what the linker does not offer.
        """
        if self._made and self._made[0].is_of(component):
            guest = self._made.popleft()
            guest.state = state
            self._wanted.release()
            return guest
        guest = Guest(self._linker, component, state, self._limits)
        if component is self._component:
            self._launched.append(guest)
            self._wanted.release()
        return guest

    def stop(self) -> None:
        """Ends the thread and closes the guests that no launch has claimed."""
        self._stopped = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()  # a millisecond: the engine must outlive the guest in the making
        while self._made:
            self._made.pop().close()
        self._launched.clear()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._stopped:
                return
            if self._launched:
                self._launched.pop().instantiate()  # the one whose turn comes last
            elif len(self._made) < self._ahead:
                component = self._component
                assert component is not None, "a component is offered before the thread starts"
                guest = Guest(self._linker, component, Unclaimed(), self._limits)
                guest.instantiate()
                self._made.append(guest)


class WarmInstances:
    """A pool of warm instances, made one at a time: fast while no program runs, else slowly."""

    def __init__(
        self, instantiation: Instantiation, count: int, is_busy: Callable[[], bool]
    ) -> None:
        """Takes the size of the pool, and a function that says whether programs run."""
        self._instantiation = instantiation
        self._count = count
        self._is_busy = is_busy
        self._component: Component | None = None
        self._ready: deque[Guest] = deque()
        self._wanted = trio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def offer(self, component: Component) -> None:
        """Keeps instances of this component warm from now on."""
        self._component = component
        self._instantiation.offer(component)
        self._wanted.set()

    def take(self, component: Component, state: object) -> Guest | None:
        """Claims a warm instance for `state`, an instance's; None if none is ready."""
        if component is not self._component or not self._ready:
            return None
        guest = self._ready.popleft()
        guest.state = state
        guest.cpu_ns = 0
        self._wanted.set()
        return guest

    async def run(self) -> None:
        """Refills the pool, until cancelled."""
        try:
            while True:
                # So long without a program, so that a series of launches is not disturbed.
                await trio.sleep(0.1)
                await self._fill()
                await self._wanted.wait()
                self._wanted = trio.Event()
        finally:
            while self._ready:
                self._ready.pop().close()

    async def _quiet(self) -> None:
        """Lets programs go first; returns in a later turn of the event loop in any case."""
        await trio.sleep(1.0 if self._is_busy() else 0)

    async def _fill(self) -> None:
        while self._component is not None and len(self._ready) < self._count:
            await self._quiet()
            guest = await self._make(self._component)
            if guest is None:
                break
            self._ready.append(guest)

    async def _make(self, component: Component) -> Guest | None:
        """Starts a guest that waits for its program; None if that failed."""
        guest = self._instantiation.guest(component, Unclaimed())
        try:
            guest.start([])
            while (status := guest.poll()) is Status.RUNNING:
                await self._quiet()
            if status is Status.WAITING:
                return guest
            log.error("the Python runtime ended before it had a program", outcome=guest.outcome)
        except GuestTrap as trap:
            log.error("the Python runtime cannot be started ahead", reason=str(trap))
        except BaseException:
            guest.close()
            raise
        return None


class Guests:
    """Guests of all programs, with the same limits."""

    def __init__(
        self,
        instantiation: Instantiation,
        components: Components,
        warm: WarmInstances,
        durable: Instantiation | None = None,
    ) -> None:
        """Takes what makes the guests of durable instances, too, where there are any."""
        self._instantiation = instantiation
        self._durable = durable
        self._components = components
        self._warm = warm

    async def prepare(self, program: Program) -> None:
        """Loads what a program runs in, compiling it off the event loop the first time.

        Raises:
            ProgramRejected: if it cannot run here.
        """
        if program.kind == "sampler":
            raise ProgramRejected(f"{program.name} is a sampler, which inferlets choose tokens by")
        if program.kind == "adapter":
            raise ProgramRejected(f"{program.name} is an adapter, which contexts go through")
        if program.kind == "tensors":
            raise ProgramRejected(f"{program.name} has tensors, which device programs are given")
        await self._components.load(program)

    def is_prepared(self, program: Program) -> bool:
        """True if `start` may be called for a program."""
        return self._components.find(program) is not None

    def start(self, program: Program, state: object, args: list[str]) -> tuple[Guest, bool]:
        """A guest that has had no turn, of a prepared program, and whether it is a warm one, which
        waits for its source and gets its arguments with that. Host functions get the state.
        """
        component = self._components.find(program)
        assert component is not None, "the program is prepared"
        warm = self._warm.take(component, state)
        if warm is not None:
            return warm, True
        guest = self._instantiation.guest(component, state)
        guest.start(args)
        return guest, False

    def start_durable(self, program: Program, state: object, args: list[str]) -> Guest:
        """A guest of a prepared program that has had no turn, with the functions of durable
        instances. None of them is warm: each life begins alike.
        """
        component = self._components.find(program)
        assert component is not None, "the program is prepared"
        assert self._durable is not None, "there are durable instances"
        guest = self._durable.guest(component, state)
        guest.start(args)
        return guest

    async def run(self) -> None:
        """Keeps warm guests ready, until cancelled."""
        try:
            await self._warm.run()
        finally:
            self._instantiation.stop()


MAX_CHARACTERS = 32 << 20  # of all programs


class CodeCache:
    """An LRU cache of Python programs' code, by their content and file name, while the server runs:
    the first instance of each compiles it for those that follow.

    CPython takes 4 ms to compile a hundred lines inside Wasm, and 0.1 ms to read what it made.

    Only the Python runtime inside an instance may add code, never the program: an instance adds
    code once, after it has looked it up and found none, and the runtime does both before the
    program runs. All instances of a server run in the same runtime, so the code is never of another
    version.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._codes: LRUCache[tuple[str, str], str] = LRUCache(max_characters, len)
        self._asked: WeakSet[object] = WeakSet()  # live instances that have looked their code up
        self._expected: WeakSet[object] = WeakSet()  # those of them that found none

    def find(self, instance: object, program: Program) -> str:
        """The code of an instance's program; empty if there is none, and `keep` is expected."""
        code: str = self._codes.get((program.hash, program.name), "")
        if not code and instance not in self._asked:
            self._expected.add(instance)
        self._asked.add(instance)
        return code

    def keep(self, instance: object, program: Program, code: str) -> None:
        """Keeps the code of an instance's program; none if it is empty.

        Raises:
            ApiError: `invalid-argument` if it was not expected: a program asks, not the runtime.
        """
        if instance not in self._expected:
            raise invalid("only the Python runtime keeps a program's code")
        self._expected.discard(instance)
        if code and len(code) <= self._codes.maxsize:
            self._codes[program.hash, program.name] = code
