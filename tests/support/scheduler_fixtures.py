"""A model's service with instances on it, the real ones, without Wasm and without a worker
process.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from pie_control.api import allocate, forward, sample, text
from pie_control.api.adapter import forward_with_attention
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.scheduler.link import Worker
from pie_control.scheduler.scheduler import Scheduler
from pie_py.config.limits import ProgramGoal, Quota
from pie_py.config.scheduling import InterceptionConfig, PrefixCacheConfig, SchedulerConfig
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import Cut, ModelDescription, Plan, PlanResult
from pie_py.wire.steps import count_steps, steps_of
from support.fake_worker import FakeWorker
from support.instances import take
from support.programs_read import create_sampler
from support.reference_scheduler import ReferenceScheduler
from support.rig import Rig, adapter, offload, runtime

MODEL = ModelDescription(
    name="symbolic",
    architecture="symbolic",
    folder="",
    page_size=8,
    kv_pages=48,
    embeds=96,
    draft_embeds=7,
    vocab_size=1000,
    hidden_size=1,
    max_position=4096,
    max_batch_tokens=24,
    max_batch_commands=5,
    stop_tokens=[],
    bos_token=None,
    dtype="float32",
    traits=[
        "allocate",
        "forward",
        "adapter",
        "introspect",
        "offload",
        "input-text",
        "output-text",
        "tokenize",
        "sample",
    ],
    layers=2,
    heads=3,
    kv_heads=1,
    adapters=["x", "y"],
    host_pages=12,
    samplers=8,
    count_rows=5,
    most_steps=9,
)


class Server(Rig):
    """Instances, one model, and a worker that runs plans when told to."""

    def __init__(
        self,
        *,
        reference: bool = False,
        prefix_cache: PrefixCacheConfig | None = None,
        prompt_tokens: int | None = None,
        prompt_ms: float = 0.0,
        policy: str = "adaptive",
        interception: InterceptionConfig | None = None,
        worker: Worker | None = None,
        quota: Quota = Quota(share=1.0, priority=100, launches=math.inf),  # noqa: B008 - frozen
        quotas: dict[str, Quota] | None = None,
        goals: dict[str, ProgramGoal] | None = None,
        **facts: Any,
    ) -> None:
        self.facts = replace(MODEL, **facts)
        config = SchedulerConfig(policy=policy, prompt_tokens=prompt_tokens, prompt_ms=prompt_ms)
        super().__init__(
            ServerConfig(
                scheduler=config,
                interception=interception or InterceptionConfig(policy="preserve"),
                prefix_cache=prefix_cache or PrefixCacheConfig(),
                quota=quota,
                quotas=quotas or {},
                goals=goals or {},
            ),
            worker=worker,
        )
        self.service = self.parts.models.add(self.facts)
        self.scheduler = self.service.scheduler
        self.worker = FakeWorker(self.facts)
        if reference:  # commands have their effects at once, instead
            one = ReferenceScheduler(self.scheduler, self.facts, lambda plan: self.worker.run(plan))
            self.service.scheduler = self.scheduler = cast(Scheduler, one)
        self.worker.holders = self.service.pages._references
        self.results: list[PlanResult] = []  # not yet delivered
        self.plans: list[Plan] = []  # that are run step by step, and are not done
        self.told: int | None = None  # results of the first of these, if it has begun

    def send(self, steps: int = 1) -> bool:
        """Sends the next plan, of so many steps at most, if there is one."""
        plan = self.scheduler.next_plan(steps)
        if plan is None:
            return False
        self.results.append(self.worker.run(plan))
        return True

    def deliver(self) -> None:
        self.scheduler.complete(self.results.pop(0))

    def send_steps(self, steps: int) -> bool:
        """As `send`, but the worker runs the plan step by step, by `run_step`."""
        plan = self.scheduler.next_plan(steps)
        if plan is not None:
            self.plans.append(plan)
        return plan is not None

    def cut(self) -> None:
        """Tells the worker to begin no further step of the newest plan."""
        cut = self.scheduler.cut()
        if cut is not None:
            self.no_worker.order(cut)

    def run_step(self, looks: bool = True) -> None:
        """The worker runs the next step of the oldest plan, and tells its results.

        Args:
            looks: whether it sees before the step that the plan is cut.
        """
        plan, first = self.plans[0], self.told
        if first is None:
            self.steps = steps_of(plan, self.facts.page_size)
            self.left = count_steps(plan)
        part = PlanResult(plan.id, plan.model, [], first or 0)
        if first is not None and looks and self.no_worker.cut == Cut(plan.model, plan.id):
            self.left = 0
        else:
            step = next(self.steps)
            part = replace(self.worker.run(replace(plan, batches=step)), first=first or 0)
            self.left -= 1
        part.last = not self.left
        self.told = None if part.last else part.first + len(part.results)
        if part.last:
            del self.plans[0]
        self.scheduler.complete(part)

    def deliver_part(self, count: int) -> None:
        """The first results of the oldest plan, if it has more."""
        whole = self.results[0]
        if count < len(whole.results):
            self.scheduler.complete(replace(whole, results=whole.results[:count], last=False))
            rest, first = whole.results[count:], whole.first + count
            self.results[0] = replace(whole, results=rest, first=first)

    def step(self) -> bool:
        sent = self.send()
        while self.results:
            self.deliver()
        return sent

    def drain(self) -> None:
        while self.step():
            pass


NONE: list[int] = []  # pages or embeds; nobody adds to it


def u32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint32)


class Guest:
    """One instance with a queue, and its calls."""

    def __init__(self, server: Server, instance: Instance | None = None, **limits: Any) -> None:
        self.server = server
        self.instance = instance or server.launch(**limits)
        self.queue = runtime.create_queue(self.instance, "symbolic")

    @property
    def at(self) -> tuple[Instance, int]:
        """The first arguments of the calls of the contract."""
        return self.instance, self.queue

    def pages(self, count: int) -> list[int]:
        return [allocate.alloc_kvpage(*self.at, count), count]

    def embeds(self, count: int) -> list[int]:
        return [allocate.alloc_emb(*self.at, count), count]

    def embed(self, tokens: list[int], first: int, embeds: list[int]) -> None:
        text.embed_txt(*self.at, tokens, [first, len(tokens)], embeds)

    def forward(
        self,
        pages: list[int],
        inputs: list[int],
        output_pages: list[int] = NONE,
        outputs: list[int] = NONE,
        mask: list[int] = NONE,
    ) -> None:
        forward.forward(*self.at, pages, inputs, output_pages, outputs, mask)

    def forward_with(
        self,
        name: str,
        pages: list[int],
        inputs: list[int],
        output_pages: list[int] = NONE,
        outputs: list[int] = NONE,
    ) -> None:
        adapter.forward_with_adapter(*self.at, name, pages, inputs, output_pages, outputs, [])

    def observe(
        self,
        pages: list[int],
        inputs: list[int],
        output_pages: list[int] = NONE,
        observed: int = 1,
        detail: str = "total",
        adapter: str = "",
    ) -> int:
        return forward_with_attention(
            *self.at, pages, inputs, output_pages, [], [], observed, detail, adapter
        )

    def take_attention(self, future: int) -> tuple[int, list[float]]:
        rows, numbers = take(self.instance, future)
        assert numbers.dtype == np.float32
        return rows, numbers.tolist()

    def mask(self, pages: list[int], *masks: int) -> None:
        forward.mask_kvpage(*self.at, pages, u32(*masks))

    def copy(self, *numbers: int) -> None:
        allocate.copy_kvpage(*self.at, *numbers)

    def used(self, pages: list[int]) -> list[int]:
        return list(allocate.kvpage_used(*self.at, pages))

    def swap_out(self, pages: list[int]) -> None:
        offload.swap_out(*self.at, pages)

    def swap_in(self, pages: list[int]) -> None:
        offload.swap_in(*self.at, pages)

    def discard(self, pages: list[int]) -> None:
        offload.discard(*self.at, pages)

    def copy_embeds(
        self, sources: list[int], targets: list[int], positions: list[int] = NONE
    ) -> None:
        allocate.copy_emb(*self.at, sources, targets, positions)

    def dist(self, embed: int, k: int = 3) -> int:
        return text.get_next_dist(*self.at, embed, k)

    def take(self, future: int) -> list[int]:
        tokens, probabilities = take(self.instance, future)
        assert tokens.dtype == np.uint32
        assert probabilities.dtype == np.float32
        assert len(tokens) == len(probabilities)
        found: list[int] = tokens.tolist()
        return found

    def sampler(self, parameters: str = "{}") -> int:
        return create_sampler(*self.at, parameters)

    def sample(self, embed: int, sampler: int) -> int:
        return sample.sample(*self.at, embed, sampler)

    def embed_sampled(self, sampler: int, position: int, embed: int) -> None:
        sample.embed_sampled(*self.at, sampler, position, embed)

    def take_sample(self, future: int) -> int:
        token, _, _, _ = take(self.instance, future)
        return int(token)

    def truncate(self, pages: list[int], *used: int) -> None:
        allocate.truncate_kvpage(*self.at, pages, u32(*used))

    def sync(self) -> int:
        future: int = runtime.synchronize(*self.at)
        return future

    def ready(self, future: int) -> bool:
        return self.instance.futures.get(future).ready

    def flood(self, inputs: int) -> None:
        """A forward of so many inputs that leaves nothing, if none is queued."""
        if not self.instance.queued_commands:
            pages, embeds = self.pages(-(-inputs // 8)), self.embeds(inputs)
            self.embed([1] * inputs, 0, embeds)
            self.forward([], embeds, pages)
            allocate.dealloc_kvpage(*self.at, pages)
            allocate.dealloc_emb(*self.at, embeds)

    def filled(self, tokens: int) -> list[int]:
        """Pages that hold this many tokens, once the server has run."""
        size = self.server.facts.page_size
        pages = self.pages(-(-tokens // size))
        embeds = self.embeds(tokens)
        self.embed(list(range(tokens)), 0, embeds)
        self.forward(pages, embeds, pages)
        allocate.dealloc_emb(*self.at, embeds)
        return pages


def refused(code: str) -> Any:
    return pytest.raises(ApiError, match=f"^{code}: ")
