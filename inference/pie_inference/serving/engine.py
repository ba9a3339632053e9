"""Loads models and runs plans on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch

from pie_inference.calibration import run_trial
from pie_inference.calibration.costs import measure
from pie_inference.calibration.kept import Calibration
from pie_inference.calibration.threads import SharedCores, Threads, one_thread
from pie_inference.device import DeviceFuture, completed, current
from pie_inference.errors import BadBatch, LoadError
from pie_inference.handlers import HANDLERS
from pie_inference.handlers.base import Served, ServedEncoder, ServedModel
from pie_inference.handlers.embeds import measure_image
from pie_inference.handlers.pages import clear
from pie_inference.loading.assembly import load_served
from pie_inference.loading.replacing import replace_weights
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_inference.serving.flight import Flight
from pie_py.config.model import ModelConfig
from pie_py.config.turns import Turns
from pie_py.wire.plan import (
    AdapterDone,
    Batch,
    BatchResult,
    Encode,
    Forward,
    ImageMeasured,
    LoadAdapter,
    MeasureImage,
    ModelDescription,
    NoTokens,
    Plan,
    PlanResult,
    ReplaceWeights,
    UnloadAdapter,
    WeightsDone,
)
from pie_py.wire.steps import steps_of

log = structlog.get_logger("pie.worker")

# How long a batch that others wait for has to take for a message of its own to pay that brings
# earlier results.
LONG_NS = 2_000_000
# The same of a further step of a plan: steps have as many messages as if each were a plan.
STEP_NS = 200_000


class Engine:
    """The models of one worker."""

    def __init__(
        self,
        configs: Sequence[ModelConfig],
        ranks: Ranks = ALONE,
        fixed_threads: bool = True,
        located: Callable[[str, Path], None] = lambda name, folder: None,
    ) -> None:
        """Loads every model, or this rank's part of it, and sizes its pools. Unless PyTorch's
        number of threads is fixed, it is chosen for each forward. `located` is told the folder of
        each model before it is loaded. Raises `LoadError` if one of them cannot be served.
        """
        self._models: dict[str, Served] = {}
        self._threads: dict[str, Threads] = {}
        self._long_ns: dict[str, int] = {}  # what the last batch of each long kind took
        self._ended_ns = 0  # when the last plan was done
        self._flights: dict[torch.device, Flight] = {}  # the last one of each GPU
        self.turns = Turns("worker")  # without batches of a long kind, whose time is planned
        for model in load_served(configs, ranks, located):
            name = model.description.name
            if name in self._models:
                raise LoadError(f"two models are called {name!r}; give one of them another name")
            self._models[name] = model
            if isinstance(model, ServedEncoder):  # a trial has shown that it can be run
                self._threads[name] = threads_of(model, fixed_threads)
                continue
            with current(model.device):
                _warm_up(model)
                self._calibrate(model, fixed_threads)

    def _calibrate(self, model: ServedModel, fixed_threads: bool) -> None:
        """Chooses threads, and measures costs unless an earlier start on this machine has."""
        kept, most = Calibration(model), torch.get_num_threads()
        threads = threads_of(model, fixed_threads)
        self._threads[model.description.name] = threads
        if kept.costs is None:
            kept.costs = measure(model, threads.use)
            torch.set_num_threads(most)  # the next model's threads are chosen from as many
            kept.write()
        model.description.kv_costs = kept.costs

    @property
    def descriptions(self) -> list[ModelDescription]:
        """The models' descriptions for the control process."""
        return [model.description for model in self._models.values()]

    @property
    def device(self) -> str:
        """Devices that the models run on, as text."""
        return ", ".join(sorted({str(model.device) for model in self._models.values()}))

    def rule_out(self, order: NoTokens) -> None:
        """Has ids that are no tokens never be chosen."""
        if isinstance(model := self._models.get(order.model), ServedModel):
            model.network.no_tokens = torch.tensor(order.ids, device=model.device)

    def load_adapter(self, order: LoadAdapter) -> AdapterDone:
        """Loads an adapter; the answer says what was wrong with it."""
        model = self._models.get(order.model)
        if not isinstance(model, ServedModel):
            error: str | None = f"this worker has no model {order.model!r} that takes adapters"
        else:
            error = _error_of(model.adapters.load, order.slot, Path(order.folder))
        return AdapterDone(order.model, order.slot, error)

    def replace_weights(self, order: ReplaceWeights) -> WeightsDone:
        """Puts other weights in place of a model's; the answer says why it has not."""
        error = _error_of(replace_weights, self._models[order.model], Path(order.file))
        return WeightsDone(order.model, error)

    def unload_adapter(self, order: UnloadAdapter) -> None:
        """Forgets an adapter."""
        if isinstance(model := self._models.get(order.model), ServedModel):
            model.adapters.unload(order.slot)

    def measure_image(self, order: MeasureImage) -> ImageMeasured:
        """The cost of an image of a size; the answer may say that the model reads none of it."""
        model = self._models.get(order.model)
        return measure_image(model if isinstance(model, ServedModel) else None, order)

    def served(self, name: str) -> ServedModel:
        """A model, to measure it."""
        model = self._models[name]
        assert isinstance(model, ServedModel)
        return model

    def start(
        self,
        plan: Plan,
        send: Callable[[PlanResult], None] = lambda part: None,
        look: Callable[[], bool] = lambda: False,
    ) -> Flight | PlanResult:
        """Hands a plan to its GPU, or runs it (see `run`) if its model is on the CPU."""
        model = self._models.get(plan.model)
        if model is None or model.device.type != "cuda":
            return self.run(plan, send, look)
        before = self._flights.get(model.device)
        flight = Flight(plan, model.description.page_size, model.device, before)
        self._flights[model.device] = flight
        self.go_on(flight)
        return flight

    def go_on(self, flight: Flight) -> None:
        """Hands the next step of a flight to its GPU."""
        model = self._models[flight.plan.model]
        with torch.inference_mode(), current(model.device):
            for batch in flight.next_step():
                flight.add(HANDLERS[type(batch)].long, _start(model, batch))

    def run(
        self,
        plan: Plan,
        send: Callable[[PlanResult], None] = lambda part: None,
        look: Callable[[], bool] = lambda: False,
    ) -> PlanResult:
        """Runs the batches of a plan in order; returns the results that were not sent. One batch
        that fails does not keep the next from running.

        `send` takes results that are ready while a long batch, or a further step, is still to come.
        `look` is called behind each long batch: what is to be run next may have come meanwhile. It
        returns whether the plan has been cut, so that no further step of it begins.
        """
        start = time.perf_counter_ns()
        idle = start - self._ended_ns if self._ended_ns else 0
        model = self._models.get(plan.model)
        if model is None:
            error = f"this worker has no model {plan.model!r}"
            return PlanResult(plan.id, plan.model, [BatchResult(error) for _ in plan.batches])
        answer = _Answer(plan, send)
        with torch.inference_mode():
            for number, step in enumerate(steps_of(plan, model.description.page_size)):
                if number:
                    if look():
                        break
                    if self._long_ns.get(Forward.kind, 0) >= STEP_NS:
                        answer.send()
                self._run_step(model, step, answer, look)
        self._ended_ns = time.perf_counter_ns()
        return answer.rest(idle)

    def _run_step(
        self, model: Served, step: list[Batch], answer: _Answer, look: Callable[[], bool]
    ) -> None:
        threads = self._threads[model.description.name]
        for batch in step:
            if isinstance(batch, Forward):
                threads.use(batch.inputs.size, batch.input_starts.size - 1)
            elif isinstance(batch, Encode):
                threads.use(batch.tokens.size, 0)
            long = HANDLERS[type(batch)].long
            waits = long and self._long_ns.get(batch.kind, 0) >= LONG_NS
            if waits and answer.has_values:
                answer.send()
            in_turn = long and self.turns.end()
            start = time.perf_counter_ns()
            result = _start(model, batch).get()
            result.nanoseconds = time.perf_counter_ns() - start
            if in_turn:
                self.turns.begin()
            answer.add(result)
            if isinstance(batch, Forward):
                threads.took(result.nanoseconds / 1e9)
            if long:
                self._long_ns[batch.kind] = result.nanoseconds
                look()


def _error_of(load: Callable[..., None], *arguments: Any) -> str | None:
    """Why something cannot be loaded, whatever is in a file: that must not end the worker."""
    try:
        load(*arguments)
    except LoadError as error:
        return str(error)
    except torch.AcceleratorError:
        raise
    except Exception as error:
        log.exception("a file cannot be loaded", file=str(arguments[-1]))
        return f"{arguments[-1]}: {type(error).__name__}: {error}"
    return None


class _Answer:
    """The results of a plan, sent in parts."""

    def __init__(self, plan: Plan, send: Callable[[PlanResult], None]) -> None:
        self.results: list[BatchResult] = []  # that are not sent
        self.has_values = False  # for which a program may wait
        self._plan = plan
        self._send = send
        self._first = 0  # of these

    def add(self, result: BatchResult) -> None:
        """Takes the next result."""
        self.results.append(result)
        self.has_values = self.has_values or result.values is not None

    def send(self) -> None:
        """Sends what is there, before the plan's end."""
        plan = self._plan
        self._send(PlanResult(plan.id, plan.model, self.results, self._first, last=False))
        self._first += len(self.results)
        self.results, self.has_values = [], False

    def rest(self, idle_ns: int) -> PlanResult:
        """The results that were not sent, at the plan's end."""
        plan = self._plan
        return PlanResult(plan.id, plan.model, self.results, self._first, idle_ns=idle_ns)


def _start(model: Served, batch: Batch) -> DeviceFuture[BatchResult]:
    """Hands a batch to the device."""
    try:
        return HANDLERS[type(batch)].run(model, batch) or completed(BatchResult())
    except BadBatch as error:
        result = BatchResult(error=str(error))
    except Exception as error:  # a batch must not end the worker, whatever is wrong with it
        # Unless the others have gone on without this rank, or the device is lost: a new worker
        # helps.
        together = isinstance(model, ServedModel) and model.ranks.size > 1
        if together or isinstance(error, torch.AcceleratorError):
            raise
        log.exception("a batch failed", kind=batch.kind)
        result = BatchResult(error=f"{batch.kind}: {type(error).__name__}: {error}")
    _clear_after(model, batch)
    return completed(result)


def _clear_after(model: Served, batch: Batch) -> None:
    """Clears what a failed batch was to write: an earlier owner's data must not show there."""
    if isinstance(model, ServedEncoder):
        return
    try:
        clear(model, HANDLERS[type(batch)].writes(model, batch))
    except Exception:  # of a batch that named what does not exist, or the device is lost
        log.exception("nothing could be cleared after a batch failed", kind=batch.kind)


def threads_of(model: Served, fixed: bool) -> Threads:
    """Those of a model: all for each batch if they are `fixed`; else found, and fewer while other
    processes have the cores.
    """
    if fixed or model.device.type != "cpu":
        return Threads(torch.get_num_threads())
    threads = Threads(torch.get_num_threads(), SharedCores())
    computed = model.encoder if isinstance(model, ServedEncoder) else model.network
    computed.between_layers = threads.between_layers
    return threads


def _warm_up(model: ServedModel) -> None:
    """Runs a small prefill and decode, so that the first plan does not pay for lazy set-up: of that
    a CPU has little, and one token shows that the model can be run at all.
    """
    prompt, decode = min(32, model.embeds.size), min(8, model.embeds.size)
    on_gpu = model.device.type == "cuda"
    with torch.inference_mode(), one_thread():
        for lengths in ([prompt], [1], [1] * decode) if on_gpu else ([1],):
            run_trial(model, lengths)
