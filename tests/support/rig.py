"""One server without processes: the real wiring, without Wasm, a worker process, or clients.

Instances are the real ones; the tests take the place of their guests and call the functions of the
contract for them. Time is a clock that a test sets.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pie_control.api.runtime import GuestClocks
from pie_control.confined.pool import ConfinedPool
from pie_control.instances.instance import Instance, InstanceState
from pie_control.programs.guests import Guests
from pie_control.programs.store import Program, ProgramStore
from pie_control.scheduler.link import Worker
from pie_control.wasm.guest import Guest
from pie_control.wasm.linker import HostFunction
from pie_control.wiring import Wiring
from pie_py.config.limits import Limits, Quota
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import Cut, LoadAdapter, Plan, UnloadAdapter

PROGRAM = Program("", "test", "python", 0, "ann", 0, "")
_FOLDER = tempfile.TemporaryDirectory(prefix="pie-rig-")
_FUNCTIONS: WeakKeyDictionary[Instance, dict[tuple[str, str], Callable[..., Any]]]
_FUNCTIONS = WeakKeyDictionary()


class Clock:
    """Seconds that stand still until a test moves them."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def date_ns(self) -> int:
        return round(self.seconds * 1e9)


class NoGuests(Guests):
    """In the place of Wasm: no program can be launched."""

    def __init__(self) -> None:
        """Has nothing to make guests of."""

    async def prepare(self, program: Program) -> None:
        raise NotImplementedError("this server runs no programs")

    def is_prepared(self, program: Program) -> bool:
        return False

    def start(self, program: Program, state: object, args: list[str]) -> tuple[Guest, bool]:
        raise NotImplementedError("this server runs no programs")

    def start_durable(self, program: Program, state: object, args: list[str]) -> Guest:
        raise NotImplementedError("this server runs no programs")

    async def run(self) -> None:
        """There are no warm guests."""


class NoWorker:
    """A worker that is never idle, so that nothing is sent but by the test."""

    in_flight = 0
    idle = False

    def __init__(self) -> None:
        self.cut: Cut | None = None  # the last one

    def send(self, plan: Plan) -> None:
        raise NotImplementedError("the test sends plans itself")

    def order(self, message: object) -> None:
        if isinstance(message, LoadAdapter | UnloadAdapter):
            raise NotImplementedError("the test loads no adapters")
        if isinstance(message, Cut):
            self.cut = message


class Rig:
    """The parts of a server, and instances whose guests are the tests."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        *,
        worker: Worker | None = None,
        clock: Callable[[], float] | None = None,
        guests: Callable[[ConfinedPool], Guests | NoGuests] = lambda confined: NoGuests(),
        dates: GuestClocks | None = None,
    ) -> None:
        """Takes what is not to be as most tests have it.

        Args:
            config: of the server; a test may have one user.
            worker: takes plans; by default one that the test sends plans for.
            clock: seconds; by default stand still.
            guests: runs programs, and is given where it may have them compiled; by default none.
            dates: what guests are told of the time; by default that of `Clock`.
        """
        self.clock = Clock()
        self.no_worker = NoWorker()
        self.config = config or ServerConfig()
        usual = {
            "quota": Quota(share=1.0, priority=100, launches=math.inf),  # most have one user
            "data_folder": Path(_FOLDER.name),
        }
        given = self.config.model_fields_set
        self.config = self.config.model_copy(
            update={name: value for name, value in usual.items() if name not in given}
        )
        dates = dates or GuestClocks(self.clock.date_ns, self.clock.date_ns)
        confined = ConfinedPool(self.config.confined)
        self.programs = ProgramStore(self.config.data_folder / "programs", 256 << 20, dates.date_ns)
        self.parts = Wiring(
            self.config,
            guests(confined),
            self.programs,
            worker or self.no_worker,
            confined,
            clock or self.clock,
            dates,
        )
        self.registry = self.parts.registry
        self.executor = self.parts.executor
        self.host_functions = self.parts.host_functions()
        self.functions = {(f.interface, f.name): f.call for f in self.host_functions}

    def function(self, name: str) -> Callable[..., Any]:
        """The function of the contract with this name."""
        return next(f.call for f in self.host_functions if f.name == name)

    def launch(
        self,
        user: str = "ann",
        program: str = PROGRAM.name,
        parent: Instance | None = None,
        **limits: Any,
    ) -> Instance:
        """An instance without a guest."""
        named = replace(PROGRAM, name=program)
        limited = Limits(**limits)
        instance = self.registry.create(named, [], user, parent=parent, limits=limited)
        self.registry.add(instance)
        _FUNCTIONS[instance] = self.functions
        return instance

    def end(self, instance: Instance) -> None:
        self.registry.end(instance, InstanceState.FINISHED, "")


def host_functions() -> tuple[HostFunction, ...]:
    """All functions of the contract, as a server has them."""
    return Rig().host_functions


class Interface:
    """The functions of one interface of the contract: `interface.function(instance, ...)`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Callable[..., Any]:
        def call(instance: Instance, *args: Any) -> Any:
            functions = _FUNCTIONS[instance]
            return functions[self._name, function.replace("_", "-")](instance, *args)

        return call


adapter = Interface("adapter")
grammar = Interface("grammar")
images = Interface("input-image")
messaging = Interface("messaging")
offload = Interface("offload")
runtime = Interface("runtime")
store = Interface("store")
