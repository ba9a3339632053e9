"""Keeps a record of where the worker's time goes, or of what it calls, for benchmarks.

`pie_py.wire.trace` says how: functions are put around those that make the stages, from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pie_py.config.server import TraceConfig
from pie_py.wire.plan import Plan, PlanResult
from pie_py.wire.trace import CallCounter, StageClock, Tap, recording, tokens_of

IDLE = "idle"  # waits for a plan
KERNELS = "kernels"  # PyTorch's operators, with what PyTorch does before them in C++
REST = "loop"

_WORKER = "pie_inference.serving.worker"
_HANDLERS = "pie_inference.handlers"
RECEIVE = Tap(IDLE, _WORKER, "_receive")
DECODE = Tap("decode", _WORKER, "decode")
SEND = Tap("reply: encode and send", _WORKER, "_send")
TAPS = (
    RECEIVE,
    DECODE,
    SEND,
    Tap("batches: Python", "pie_inference.serving.engine.Engine", "run"),
    Tap("batches: Python", "pie_inference.serving.engine.Engine", "start"),  # on a GPU
    Tap("embed", _HANDLERS, "embed_text"),
    Tap("embed", _HANDLERS, "embed_sampled"),
    Tap("forward: tables", _HANDLERS, "forward_within_memory"),
    Tap("forward: layers", "pie_inference.models.decoder.Decoder", "forward"),
    Tap("output", _HANDLERS, "next_dist"),
    Tap("output", _HANDLERS, "sample"),
)


@contextmanager
def tracing(config: TraceConfig | None) -> Iterator[None]:
    """Within it, a record is kept if one is wanted, and written at the end."""
    with ExitStack() as kernels:

        def start() -> StageClock:
            clock = StageClock([KERNELS, *(tap.stage for tap in TAPS)], REST)
            _tap(clock)
            if config is not None and config.kind == "kernels":
                kernels.enter_context(_Kernels(clock))
            return clock

        with recording(config, "worker", _count, start):
            yield


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the clock when an operator of PyTorch runs. On a GPU that is when it is handed over."""

    def __init__(self, clock: StageClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._kernels = clock.stages.index(KERNELS)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), options: Any = None
    ) -> Any:
        outer = self._clock.enter(self._kernels)
        try:
            return function(*args, **(options or {}))
        finally:
            self._clock.enter(outer)


def _tap(clock: StageClock) -> None:
    for tap in TAPS:
        tap.replace(partial(clock.timed, tap.stage))
    arrived = 0

    def receive(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal arrived
            message = function(*args)
            arrived = clock.since
            return message

        return run

    def send(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(socket: Any, message: Any) -> None:
            function(socket, message)
            if isinstance(message, PlanResult) and message.last:
                clock.mark("answered", message.id)

        return run

    RECEIVE.replace(receive)
    SEND.replace(send)
    _on_received(lambda plan, tokens: clock.mark("received", plan, tokens, at=arrived))


def _count(counter: CallCounter) -> None:
    def uncounted(receive: Callable[..., Any]) -> Callable[..., Any]:
        """How often one looks for a message says nothing about the work."""

        def run(*args: Any) -> Any:
            counter.stop()
            message = receive(*args)
            counter.start()
            return message

        return run

    RECEIVE.replace(uncounted)
    _on_received(counter.mark)


def _on_received(mark: Callable[[int, int], None]) -> None:
    """Calls back for every plan: its number, and how many tokens have been asked for before it."""
    tokens = 0

    def decode(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(frames: Any) -> Any:
            nonlocal tokens
            message = function(frames)
            if isinstance(message, Plan):
                mark(message.id, tokens)
                tokens += tokens_of(message)
            return message

        return run

    DECODE.replace(decode)
