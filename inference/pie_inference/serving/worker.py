"""The worker's process: its socket, its end, and the loop between."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import deque
from functools import partial
from pathlib import Path

import structlog
import torch
import zmq
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from pie_inference.errors import LoadError
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_inference.parallel.team import Team, check_devices
from pie_inference.serving.engine import Engine
from pie_inference.serving.flight import Flight
from pie_py.config.child import exit_with_parent
from pie_py.config.logs import LogConfig, listeners, set_up_logs
from pie_py.config.model import ModelConfig
from pie_py.config.platform import c_function
from pie_py.config.plugins import ObserverConfig, observing
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    Cut,
    Doing,
    Failed,
    Hello,
    LoadAdapter,
    Located,
    MeasureImage,
    Message,
    NoTokens,
    Plan,
    PlanResult,
    ReplaceWeights,
    Stop,
    UnloadAdapter,
)
from pie_py.wire.zmq_socket import has_input

log = structlog.get_logger("pie.worker")

SPIN_SECONDS = 200e-6  # after a plan the next one is near: being woken costs more than looking
LINGER_MS = 5000  # for the last message
GRACE_SECONDS = 10
STEPS_AHEAD = 2  # steps of plans that a GPU has been given: the one that it runs, and one more
MOST_FLIGHTS = 3  # plans that a rank hands over before it waits for the first of them
# On a CPU the control process and its clients need the same cores for short moments in which all
# instances wait for them; the worker's threads need them all the time.
CPU_NICENESS = 5
PR_SET_THP_DISABLE = 41  # Linux's prctl.h


class WorkerConfig(BaseModel):
    """A worker's command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[ModelConfig, ...] = Field(min_length=1)
    threads: PositiveInt | None = None  # of torch; None: chosen for each forward
    tensor_parallel_size: PositiveInt = 1  # processes that compute each model together
    observer: ObserverConfig | None = None
    log: LogConfig = LogConfig()

    @property
    def fixed_threads(self) -> bool:
        """True if the number of PyTorch's threads is configured, or ranks share the cores."""
        configured = self.threads is not None or "OMP_NUM_THREADS" in os.environ
        return configured or self.tensor_parallel_size > 1

    @property
    def on_cpu(self) -> bool:
        """True if ranks compute on the CPU."""
        return not torch.cuda.is_available() or all(m.device == "cpu" for m in self.models)


def run(endpoint: str, config: WorkerConfig) -> int:
    """Connects to the control process, loads the models and runs plans until it is to stop. Returns
    the process's exit status: 0 after `Stop`, 1 if the models cannot be loaded.
    """
    _settle(config)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(endpoint)
    # Of this thread, as the socket.
    listeners.append(lambda text: send(socket, Doing(text)))
    team: Team | None = None
    try:
        try:
            ranks = ALONE
            if (size := config.tensor_parallel_size) > 1:
                check_devices(size, config.on_cpu)
                team = Team(context, size, config.model_dump_json())
                ranks = Ranks.join(0, size, team.meeting, config.on_cpu)

            def located(model: str, folder: Path) -> None:
                send(socket, Located(model, str(folder)))

            engine = Engine(config.models, ranks, config.fixed_threads, located)
        except LoadError as error:
            send(socket, Failed(str(error)))
            return 1
        except Exception as error:  # noqa: BLE001  control must learn why, whatever it is
            traceback.print_exc()
            send(socket, Failed(f"{type(error).__name__}: {error}"))
            return 1
        listeners.clear()
        send(socket, Hello(os.getpid(), engine.device, engine.descriptions))
        with observing(config.observer, "worker", sys.modules[__name__]):
            _serve(socket, engine, team)
        return 0
    finally:
        if team is not None:
            team.close()
        context.destroy(LINGER_MS)  # sockets of a team that was not made, too


def follow(endpoint: str, meeting: str, rank: int, config: WorkerConfig) -> int:
    """Computes as a further rank what comes to `endpoint` from the first, until `Stop`."""
    _settle(config)
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(endpoint)
    try:
        size = config.tensor_parallel_size
        try:
            check_devices(size, config.on_cpu)
            ranks = Ranks.join(rank, size, meeting, config.on_cpu)
            engine = Engine(config.models, ranks)
        except LoadError as error:
            log.error("a rank cannot serve its part", rank=rank, reason=str(error))
            time.sleep(GRACE_SECONDS)  # the first rank finds the same, mostly, and reports it
            return 1
        flights: deque[Flight] = deque()
        while True:
            match decode(socket.recv()):
                case Plan() as plan:
                    started = engine.start(plan)
                    if isinstance(started, Flight):
                        while started.has_more:
                            engine.go_on(started)
                        flights.append(started)
                        while len(flights) > MOST_FLIGHTS:
                            flights.popleft().take(wait=True)
                case Stop():
                    return 0
                case NoTokens() as order:
                    engine.rule_out(order)
                case _:  # what the first rank answers for all
                    pass
    finally:
        socket.close()
        context.term()


def _settle(config: WorkerConfig) -> None:
    """Sets a worker's process up: every one does this first."""
    set_up_logs(config.log)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; control decides
    exit_with_parent()
    _allow_large_pages()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if not torch.cuda.is_available():
        os.nice(CPU_NICENESS)  # before torch starts its threads, which inherit it


def _allow_large_pages() -> None:
    """Pages of two megabytes, where the system gives them to all processes: the control process has
    none, because it counts pages, and its children have none either unless they say so.
    """
    if (prctl := c_function("prctl")) is not None:
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


class _Inbox:
    """Messages in their order. One that comes while a plan runs is read before that plan's end."""

    def __init__(self, socket: zmq.Socket[bytes], team: Team | None) -> None:
        self._socket = socket
        self._team = team
        self._read: deque[Message] = deque()
        self._cut: tuple[str, int] | None = None  # model and number of the plan that was cut last

    def look(self) -> None:
        """Reads what is there."""
        while has_input(self._socket):
            self._receive()

    def is_cut(self, plan: Plan) -> bool:
        """True if a plan has been cut, by what is there."""
        self.look()
        return self._cut == (plan.model, plan.id)

    @property
    def is_empty(self) -> bool:
        """True if there is no message."""
        self.look()
        return not self._read

    def take(self) -> Message:
        """The next message."""
        while not self._read:
            self._receive()
        return self._read.popleft()

    def _receive(self) -> None:
        """Waits for the next message, which the other ranks get, too."""
        frame = receive(self._socket)
        if self._team is not None:
            self._team.pass_on(frame)
        message = decode(frame)
        if isinstance(message, Cut):
            self._cut = message.model, message.plan
        else:
            self._read.append(message)


def _serve(socket: zmq.Socket[bytes], engine: Engine, team: Team | None) -> None:
    """Answers plans until `Stop`. One that has come while another ran has been read by its end; the
    next one of a GPU is prepared and handed over meanwhile.
    """
    flights: deque[Flight] = deque()
    inbox = _Inbox(socket, team)

    def answer(part: PlanResult) -> None:
        part.long_turns, part.longest_turn = engine.turns.long, engine.turns.worst
        send(socket, part)

    def land(wait: bool = False) -> None:
        while flights and (part := flights[0].take(wait)):
            answer(part)
            if part.last:
                flights.popleft()

    def go_on() -> None:
        steps = sum(flight.steps for flight in flights)
        for flight in flights:
            if inbox.is_cut(flight.plan):
                flight.cut()
            while flight.has_more and steps < STEPS_AHEAD:
                engine.go_on(flight)
                steps += 1
            if flight.has_more:
                return

    while True:
        engine.turns.end()
        engine.turns.begin()
        if flights:
            land()
            go_on()
            if flights and (inbox.is_empty or flights[-1].has_more):
                continue
        engine.turns.end()
        message = inbox.take()
        engine.turns.begin()
        match message:
            case Plan() as plan:
                if flights:  # answers come in the order of the plans, so parts of this one must not
                    started = engine.start(plan)
                else:
                    started = engine.start(plan, answer, partial(inbox.is_cut, plan))
                if isinstance(started, PlanResult):
                    land(wait=True)
                    answer(started)
                else:
                    flights.append(started)
            case Stop():
                return
            case other:
                _obey(socket, engine, other)


def _obey(socket: zmq.Socket[bytes], engine: Engine, message: Message) -> None:
    """Does what a message asks for that is neither a plan nor `Stop`."""
    match message:
        case NoTokens() as order:
            engine.rule_out(order)
        case LoadAdapter() as order:
            send(socket, engine.load_adapter(order))
        case UnloadAdapter() as order:
            engine.unload_adapter(order)
        case ReplaceWeights() as order:
            send(socket, engine.replace_weights(order))
        case MeasureImage() as order:
            send(socket, engine.measure_image(order))
        case other:
            log.error("a message that is not for workers", message=type(other).__name__)


def receive(socket: zmq.Socket[bytes]) -> bytes:
    """The next message: looks for it for a moment, then sleeps until it comes."""
    end = time.perf_counter() + SPIN_SECONDS
    while time.perf_counter() < end:
        if has_input(socket):
            break
    return socket.recv()


def send(socket: zmq.Socket[bytes], message: Message) -> None:
    """Sends a message to the control process."""
    socket.send(encode(message), copy=False)
