"""A model's service with instances on it, the real ones, without Wasm and without a worker process."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

from symbolic_worker import SymbolicWorker

from pie_control.executor import Executor
from pie_control.host import Host
from pie_control.instance import Instance
from pie_control.lifecycle import Lifecycle
from pie_control.scheduler.service import ModelService
from pie_control.timers import Timers
from pie_py.config import Limits, SchedulerConfig, ServerConfig
from pie_py.wire.plan import ModelDescription, PlanResult

MODEL = ModelDescription(
    name="symbolic",
    architecture="symbolic",
    folder="",
    page_size=8,
    kv_pages=48,
    embeds=96,
    vocab_size=1000,
    hidden_size=1,
    max_position=4096,
    max_batch_tokens=24,
    max_batch_commands=5,
    stop_tokens=[],
    bos_token=None,
    dtype="float32",
    traits=[],
)


class Server:
    """Instances, one model, and a worker that runs plans when told to."""

    def __init__(self, policy: str = "adaptive", k: int = 3, **facts: Any) -> None:
        self.facts = replace(MODEL, **facts)
        config = SchedulerConfig.model_validate({"policy": policy, "k": k})
        self.service = ModelService(self.facts, config)
        self.scheduler = self.service.scheduler
        self.worker = SymbolicWorker(self.facts)
        lifecycle = Lifecycle(ServerConfig(), None, None, None)  # type: ignore[arg-type]
        executor = Executor(lifecycle.end, lambda: None)
        self.host = Host(executor, Timers(), lifecycle, {self.facts.name: self.service})
        lifecycle.host = self.host
        self.lifecycle = lifecycle
        self.results: list[PlanResult] = []  # not yet delivered
        self._numbers = itertools.count(1)

    def launch(self, user: str = "ann", **limits: Any) -> Instance:
        number = next(self._numbers)
        program: Any = None
        instance = Instance(
            number, f"i{number}", program, [], user, Limits(**limits), self.host, None
        )
        self.lifecycle._live[instance.id] = instance
        return instance

    def send(self, later_ns: int = 10**9) -> bool:
        """Sends the next plan, asked for a while from now, so that every policy lets go."""
        plan = self.scheduler.next_plan(time.monotonic_ns() + later_ns)
        if plan is None:
            return False
        self.results.append(self.worker.run(plan))
        return True

    def deliver(self) -> None:
        self.scheduler.complete(self.results.pop(0))

    def step(self) -> bool:
        sent = self.send()
        while self.results:
            self.deliver()
        return sent

    def drain(self) -> None:
        while self.step():
            pass
