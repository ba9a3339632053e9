"""A server whose scheduler is the real one, and whose guests, worker and time are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.goals.sessions import Session, Turn
from benchmarks.instant_worker import TRAITS, answer
from pie_control.api.runtime import GuestClocks
from pie_control.confined.pool import ConfinedPool
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import InstanceState
from pie_control.programs.store import Program, ProgramStore
from pie_control.wiring import Wiring
from pie_py.config.limits import Quota
from pie_py.config.scheduling import InterceptionConfig, SchedulerConfig
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import Forward, ModelDescription, Plan, PlanResult, SwapIn, SwapOut
from pie_py.wire.steps import steps_of

# Milliseconds of a step, of each sequence in it, and of each input of a prompt: about an 8B model
# on one GPU.
STEP, SEQUENCE, INPUT = 8.0, 0.25, 0.06
SWAP = 0.2  # for each page that moves
ROOM = 16  # sequences of a step
PAGE = 32
MODEL = ModelDescription(
    *("simulated", "simulated", "", PAGE, 1 << 18, 1 << 20),
    vocab_size=1000,
    hidden_size=1,
    max_position=1 << 20,
    max_batch_tokens=2048,
    max_batch_commands=ROOM,
    stop_tokens=[],
    bos_token=None,
    dtype="float32",
    traits=TRAITS,
    layers=1,
    heads=1,
)


def work(sessions: Sequence[Session]) -> float:
    """The seconds that a worker with full batches needs for them."""
    turns = [turn for session in sessions for turn in session.turns]
    row = STEP / ROOM + SEQUENCE
    return sum(turn.output * row + turn.prompt * INPUT for turn in turns) / 1e3


class Simulation:
    """Runs sessions of one user under a policy."""

    def __init__(self, policy: str, folder: Path, model: ModelDescription = MODEL) -> None:
        """Nothing runs yet."""
        self.now = 0.0
        config = ServerConfig(
            scheduler=SchedulerConfig(policy=policy),
            interception=InterceptionConfig(policy="preserve"),
            quota=Quota(share=1.0, launches=1e9),
            data_folder=folder,
        )
        none: Any = SimpleNamespace(prepare=None)  # guests and a worker: nothing is asked of them
        store = ProgramStore(folder / "programs", 1 << 20, self._ns)
        confined, clocks = ConfinedPool(config.confined), GuestClocks(self._ns, self._ns)
        parts = Wiring(config, none, store, none, confined, lambda: self.now, clocks)
        self.service = parts.models.add(model)
        self._scheduler = self.service.scheduler
        self.registry, self.models, self._timers = parts.registry, parts.models, parts.timers
        self.functions = {each.name: each.call for each in parts.host_functions()}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.ready: list[Callable[[], None]] = []
        self.took: list[float] = []  # seconds of each session, as they end

    def _ns(self) -> int:
        return round(self.now * 1e9)

    def later(self, at: float, act: Callable[[], None]) -> None:
        """Has something done at a time."""
        heappush(self._events, (at, next(self._numbers), act))

    def run(self, sessions: Sequence[Session]) -> list[float]:
        """Runs them to the end of the last one; the seconds of each."""
        for session in sessions:
            self.later(session.at, _Running(self, session).begin)
        return self.run_all()

    def run_all(self) -> list[float]:
        """Runs what is to be done until there is no more; the seconds of each session."""
        while True:
            plan = self._scheduler.next_plan(1)
            if plan is None and self._next == math.inf:
                return self.took
            result, end = (None, self._next) if plan is None else self._answer(plan)
            while self._next <= end:
                self.now = max(self.now, self._next)
                self._timers.fire()
                if self._events and self._events[0][0] <= self.now:
                    self.ready.append(heappop(self._events)[2])
                self._wake()
            if result is not None:
                self.now = end
                self._scheduler.complete(result)
                self._wake()

    @property
    def _next(self) -> float:
        """When something is to be done next."""
        return min(self._timers.due, self._events[0][0] if self._events else math.inf)

    def _answer(self, plan: Plan) -> tuple[PlanResult, float]:
        """A plan's results, and when they are there."""
        batches = [batch for step in steps_of(plan, PAGE) for batch in step]
        result, milliseconds = PlanResult(plan.id, plan.model, [*map(answer, batches)]), 0.0
        for batch, found in zip(batches, result.results, strict=True):
            if isinstance(batch, Forward):
                rows = len(batch.input_starts) - 1
                took = STEP + SEQUENCE * rows + INPUT * (len(batch.inputs) - rows)
                found.nanoseconds = round(took * 1e6)
                milliseconds += took
            elif isinstance(batch, SwapIn | SwapOut):
                took = SWAP * len(batch.pages)
                found.nanoseconds = round(took * 1e6)
                milliseconds += took
        return result, self.now + milliseconds / 1e3

    def _wake(self) -> None:
        while self.ready:
            self.ready.pop(0)()


class Guest:
    """Makes a program's calls, in its place."""

    def __init__(self, simulation: Simulation, program: str) -> None:
        """It is launched."""
        self.simulation = simulation
        stored = Program("", program, "python", 0, "", 0, "")
        self.instance = simulation.registry.create(stored, [], "ann")
        simulation.registry.add(self.instance)
        self._queue = simulation.functions["create-queue"](self.instance, MODEL.name)
        self.sampler = self.do("create-sampler", '{"temperature": 0, "seed": 0}')

    def do(self, name: str, *arguments: Any) -> Any:
        """A call that has a queue."""
        return self.simulation.functions[name](self.instance, self._queue, *arguments)

    def when(self, future: int, act: Callable[[], None]) -> None:
        """Goes on once a future is there."""
        self.instance.futures.announce = lambda _: self.simulation.ready.append(act)

    def end(self) -> None:
        """It has ended."""
        self.simulation.registry.end(self.instance, InstanceState.FINISHED, "")


class _Running:
    """A session under way."""

    def __init__(self, simulation: Simulation, session: Session) -> None:
        self._simulation, self._session = simulation, session
        self._left = [*session.turns]

    def begin(self) -> None:
        """It is launched."""
        self._guest = Guest(self._simulation, self._session.program)
        self._turn()

    def _turn(self) -> None:
        turn, do = self._left.pop(0), self._guest.do
        size = -(-(turn.prompt + turn.output) // PAGE) + 1
        pages, own = do("alloc-kvpage", size), do("alloc-emb", turn.prompt + 2)
        last, inputs = own + turn.prompt, [own, turn.prompt]
        do("embed-txt", [1] * turn.prompt, [0, turn.prompt], inputs)
        do("forward", [], inputs, [pages, size], [last, 1], [])
        full = turn.prompt // PAGE
        held = [pages, -(-turn.prompt // PAGE)], [pages + full, size - full]
        places = last, turn.prompt, last + 1
        run = do("start-run", self._guest.sampler, *places, *held, "", turn.output, [])

        def over() -> None:
            do("end-run", run, 0)
            do("dealloc-kvpage", [pages, size])
            do("dealloc-emb", [own, turn.prompt + 2])
            self._call(turn)

        self._guest.when(do("run-progress", run, turn.output), over)

    def _call(self, turn: Turn) -> None:
        simulation, guest = self._simulation, self._guest
        if not self._left:
            guest.end()
            simulation.took.append(simulation.now - self._session.at)
            return
        tool = guest.instance.futures.create_outside(FutureKind.RESPONSE, "mcp tool")
        guest.when(tool.handle, self._turn)
        simulation.later(simulation.now + turn.seconds, tool.resolve)
