"""The control side of one inference worker: its process, its socket, its death and restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

import structlog
import trio
import zmq

from pie_control.scheduler.worker_process import WorkerProcess, start_worker
from pie_py.config.child import first_error
from pie_py.config.processes import LOAD_SECONDS, Backoff
from pie_py.config.server import ServerConfig
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
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.worker")


Order: TypeAlias = Cut | NoTokens | LoadAdapter | UnloadAdapter | ReplaceWeights | MeasureImage
# What takes a worker's answers to other messages than plans, by their types.
Answers: TypeAlias = Mapping[type[Message], Callable[[Any], None]]
LOADING = "loading the models"


class WorkerFailed(Exception):
    """The worker cannot start; the text is its own reason."""


class Worker(Protocol):
    """The worker, as its senders see it."""

    @property
    def in_flight(self) -> int:
        """Plans sent that are not done."""

    @property
    def idle(self) -> bool:
        """True if the worker is ready and has no plan."""

    def send(self, plan: Plan) -> None:
        """Sends a plan."""

    def order(self, message: Plan | Order) -> None:
        """Sends a message, behind those before it."""


class WorkerLink:
    """Runs the worker process and exchanges messages with it.

    The owner sets the callbacks before `run`: `on_hello` when the worker is ready, `on_results` for
    the answers to plans that have come, `answers` for others, `on_lost` when a worker that was
    ready has died; and of one that starts, `on_doing` when it says what takes it long, `on_located`
    when it has found a model's files.
    """

    def __init__(self, config: ServerConfig, first: WorkerProcess | None = None) -> None:
        self._config = config
        self._first = first
        self._socket: Socket | None = None
        self.in_flight = 0  # plans sent that are not done
        self.ready = False
        self.long_turns = (0, 0.0)  # of the worker: how many, and the longest in seconds
        self.pid: int | None = None
        self.on_hello: Callable[[Hello], None] = lambda hello: None
        self.on_results: Callable[[list[PlanResult]], None] = lambda results: None
        self.answers: Answers = {}
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.doing = LOADING  # for a person, until it is ready
        self.on_doing: Callable[[str], None] = lambda text: None
        self.on_located: Callable[[Located], None] = lambda found: None

    @property
    def idle(self) -> bool:
        """True if the worker is ready and has no plan."""
        return self.ready and self.in_flight == 0

    def send(self, plan: Plan) -> None:
        """Sends a plan. Call it only while the worker is ready."""
        self.in_flight += 1
        self.order(plan)

    def order(self, message: Plan | Order) -> None:
        """Sends a message, behind those before it. Call it only while the worker is ready."""
        if self._socket is None:  # the worker has just died: `on_lost` comes in trio's next pass
            return
        # Without a connection the worker is dying, and the message is lost: `on_lost` comes.
        self._socket.send(encode(message))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps a worker running until cancelled; reports started when the first one is ready.

        Raises:
            WorkerFailed: if the first worker cannot start. Later ones are tried again.
        """
        backoff = Backoff(trio.current_time)
        started = False

        async def serves(hello: Hello) -> None:
            nonlocal started
            self.begin(hello)
            if not started:
                started = True
                task_status.started()

        while True:
            try:
                reason = await self.live(serves)
            except WorkerFailed as error:
                reason = str(error)
                if not started:
                    raise
            self.end(f"the inference worker was lost: {reason}")
            pause = backoff.pause()
            log.error("worker lost, starting another", reason=reason, seconds=pause)
            await trio.sleep(pause)
            backoff.start()

    async def live(self, serves: Callable[[Hello], Awaitable[None]]) -> str:
        """Runs one worker to its end, and returns why it has ended; `serves` is called once it is
        ready, and calls `begin`.

        Raises:
            WorkerFailed: if it cannot start.
        """
        code = 0
        try:
            async with trio.open_nursery() as nursery:
                hello, worker = await nursery.start(self._start_process)
                await serves(hello)
                code = await worker.wait()
                nursery.cancel_scope.cancel()
        except* WorkerFailed as group:
            raise WorkerFailed(str(first_error(group))) from None
        return f"it exited with status {code}"

    def begin(self, hello: Hello) -> None:
        """The worker takes plans from now on."""
        self.pid = hello.pid
        self.ready = True
        self.on_hello(hello)

    def end(self, reason: str) -> None:
        """The worker is gone."""
        if self.ready:
            self.ready = False
            self.in_flight = 0
            self.on_lost(reason)

    async def _start_process(
        self, task_status: trio.TaskStatus[tuple[Hello, WorkerProcess]]
    ) -> None:
        """Starts a worker, waits for its hello, then serves its answers until cancelled."""
        config = self._config.model_dump(mode="json")
        try:
            worker, self._first = self._first or start_worker(config), None
        except OSError as error:
            raise WorkerFailed(f"it cannot be started: {error}") from None
        assert worker is not None, "the configuration has all fields"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDHWM, 0)
        socket = Socket(dealer)
        try:
            dealer.bind(worker.endpoint)
            self._socket = socket
            hello = await self._first_message(socket, worker)
            task_status.started((hello, worker))
            while True:
                self._drain()
                await socket.wait()
        finally:
            if worker.process.poll() is None:
                await self._stop(socket, worker)
            self._socket = None
            socket.close()
            worker.close()

    async def _first_message(self, socket: Socket, worker: WorkerProcess) -> Hello:
        with trio.move_on_after(LOAD_SECONDS) as silence:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    code = await worker.wait()
                    await trio.sleep(0.2)  # its last words may still be on the way
                    raise WorkerFailed(f"it exited with status {code} before it was ready")

                nursery.start_soon(watch)
                self.doing = LOADING
                while isinstance(found := await self._next_message(socket), Doing | Located):
                    silence.deadline = trio.current_time() + LOAD_SECONDS
                    if isinstance(found, Located):
                        self.on_located(found)
                    else:
                        self.doing = found.text
                        self.on_doing(found.text)
                nursery.cancel_scope.cancel()
            match found:
                case Hello() as hello:
                    return hello
                case Failed(reason):
                    raise WorkerFailed(reason)
                case other:
                    raise WorkerFailed(f"it said {type(other).__name__} before hello")
        raise WorkerFailed(f"it has said nothing for {LOAD_SECONDS:.0f} s")

    async def _next_message(self, socket: Socket) -> Message:
        while (frame := socket.receive()) is None:
            await socket.wait()
        return decode(frame)

    async def _stop(self, socket: Socket, worker: WorkerProcess) -> None:
        """Asks the worker to exit, and kills it after two seconds."""
        with trio.CancelScope(shield=True):
            socket.send(encode(Stop()))  # is lost if the worker has closed its end already
            with trio.move_on_after(2):
                await worker.wait()
            if worker.process.poll() is None:
                worker.process.kill()
                await worker.wait()

    def _drain(self) -> None:
        """Handles every message that has arrived."""
        socket = self._socket
        if socket is None or not self.ready:
            return
        results: list[PlanResult] = []
        while (frame := socket.receive()) is not None:
            message = decode(frame)
            if isinstance(message, PlanResult):
                self.in_flight -= message.last
                self.long_turns = message.long_turns, message.longest_turn
                results.append(message)
            elif (take := self.answers.get(type(message))) is not None:
                take(message)
        if results:
            self.on_results(results)
