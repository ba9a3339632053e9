"""The stages of the worker's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.tracing.clock import StageClock, Tap
from pie_inference.handlers import HANDLERS
from pie_inference.models.decoder import Decoder
from pie_inference.serving import worker
from pie_inference.serving.engine import Engine
from pie_py.bench.observed import after_plans_decoded, replace
from pie_py.wire.plan import (
    EmbedSampled,
    EmbedText,
    Forward,
    NextDist,
    PlanResult,
    Sample,
)

IDLE = "idle"  # waits for a plan
KERNELS = "kernels"  # PyTorch's operators, with what PyTorch does before them in C++
REST = "loop"

TAPS = (
    Tap(IDLE, worker, "receive"),
    Tap("decode", worker, "decode"),
    Tap("reply: encode and send", worker, "send"),
    Tap("batches: Python", Engine, "run"),
    Tap("batches: Python", Engine, "start"),  # on a GPU
    Tap("embed", HANDLERS[EmbedText], "run"),
    Tap("embed", HANDLERS[EmbedSampled], "run"),
    Tap("forward: tables", HANDLERS[Forward], "run"),
    Tap("forward: layers", Decoder, "forward"),
    Tap("output", HANDLERS[NextDist], "run"),
    Tap("output", HANDLERS[Sample], "run"),
)


def worker_clock() -> StageClock:
    """A clock of this process's stages, which runs from now on."""
    clock = StageClock(REST)
    for tap in TAPS:
        tap.time(clock)
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

    replace(worker, "receive", receive)
    replace(worker, "send", send)
    after_plans_decoded(
        worker, lambda plan, tokens: clock.mark("received", plan, tokens, at=arrived)
    )
    return clock


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the clock when an operator of PyTorch runs. On a GPU that is when it is handed over."""

    def __init__(self, clock: StageClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._kernels = clock.number(KERNELS)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), options: Any = None
    ) -> Any:
        outer = self._clock.enter(self._kernels)
        try:
            return function(*args, **(options or {}))
        finally:
            self._clock.enter(outer)
