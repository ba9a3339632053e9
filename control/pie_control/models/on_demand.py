"""Models that are loaded when they are first asked for, each by a worker of its own.

A process each: then no other model waits while a checkpoint is read, a damaged one ends no other
worker, and all of its memory goes back when it is unloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import structlog
import trio
from trio.to_thread import run_sync

from pie_control.errors import ApiError, Shortage
from pie_control.instances.turns import Executor
from pie_control.models.adapter_loading import AdapterLoader
from pie_control.models.model import ModelService
from pie_control.models.served import ServedModels
from pie_control.models.tokenizer_files import UnusableTokenizer
from pie_control.scheduler.dispatcher import Dispatcher
from pie_control.scheduler.link import Answers, WorkerFailed, WorkerLink
from pie_control.tasks import Service
from pie_control.timers import Timers
from pie_py.config.memory import available_memory
from pie_py.config.model import ModelConfig
from pie_py.config.server import ServerConfig
from pie_py.models.packaged import PACKAGED
from pie_py.wire.plan import Hello

log = structlog.get_logger("pie.models")

LOOK_SECONDS = 0.25
# Of a model that was just asked for, before another one may take its place: its program comes soon.
STAYS_SECONDS = 1.0
WORKER_BYTES = 300 << 20  # of a worker without a model, about


@dataclass(eq=False)
class _Life:
    """One worker of a model, from the request that had it started to its end."""

    loaded: trio.Event = field(default_factory=trio.Event)  # or it has failed
    over: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    link: WorkerLink | None = None  # None: there is no room yet
    error: ApiError | None = None


class _Model:
    """A model that may be loaded."""

    def __init__(self, config: ModelConfig, idle_seconds: float) -> None:
        self.config = config.model_copy(update={"on_demand": False})
        self.name = config.called
        self.idle_seconds = idle_seconds
        self.services: dict[str, ModelService] = {}  # its own, while it is loaded
        self.life: _Life | None = None
        self.last = 0  # bytes that its worker had; 0: it has not been loaded yet

    @property
    def service(self) -> ModelService | None:
        """Of the model, while it is loaded."""
        return self.services.get(self.name)

    @property
    def state(self) -> str:
        """For a person: llama.cpp's words."""
        return "loaded" if self.services else "unloaded" if self.life is None else "loading"

    @property
    def bytes(self) -> int:
        """Of the host that its worker has, or will have, about."""
        if self.services and self.life is not None and self.life.link is not None:
            with suppress(psutil.Error):
                worker = psutil.Process(self.life.link.pid)
                family = [worker, *worker.children(recursive=True)]
                self.last = sum(each.memory_info().rss for each in family)
        return self.last or WORKER_BYTES + _bytes_on_disk(self.config.source)


class OnDemandModels(Service):
    """Loads them, and unloads those that are not in use: after a time, or for another one."""

    def __init__(
        self,
        config: ServerConfig,
        models: ServedModels,
        adapters: AdapterLoader,
        answers: Answers,
        lose: Callable[[dict[str, ModelService], str], None],
        executor: Executor,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        """Takes what takes workers' answers, and what is called with models whose worker is gone,
        and why.
        """
        self._config, self._bounds = config, config.on_demand
        self._models, self._adapters = models, adapters
        self._answers, self._lose = answers, lose
        self._executor, self._timers, self._clock = executor, timers, clock
        wanted = [model for model in config.models if model.on_demand]
        self._all = {one.called: _Model(one, self._bounds.idle_seconds) for one in wanted}

    @property
    def doing(self) -> list[str]:
        """Sentences for a person: the models that are loaded now, or wait for room."""
        found = []
        for model in self._all.values():
            if model.life is not None and not model.services:
                link = model.life.link
                what = "waits for memory" if link is None else link.doing
                found.append(f"loading the model {model.name}: {what}")
        return found

    def describe(self) -> Mapping[str, Mapping[str, Any]]:
        """`state` of each by name; of loaded ones `bytes`, and `idle_seconds` until they go."""
        found = {}
        for name, model in self._all.items():
            facts: dict[str, Any] = {"on_demand": True, "state": model.state}
            facts["source"] = model.config.source
            if (service := model.service) is not None:
                left = model.idle_seconds - (self._clock() - service.used_at)
                idle = {"idle_seconds": model.idle_seconds if service.is_held else max(left, 0.0)}
                facts |= {"bytes": model.bytes, **idle}
            found[name] = facts
        return found

    def order_of(self, name: str) -> Callable[[Any], None] | None:
        """How to send messages to a model's own worker; None if it has none."""
        model = self._all.get(name)
        link = None if model is None or model.life is None else model.life.link
        return None if link is None else link.order

    async def load(self, name: str) -> None:
        """Returns at once if a model is loaded, else once it is; what is begun goes on if the
        caller gives up.

        Raises:
            ApiError: `unknown-model`; `failed-dependency`: it cannot be loaded; `out-of-resources`:
                there is no room, and what is loaded is in use.
        """
        if name in self._models.services and name not in self._all:
            return
        model = self._find(name)
        while not model.services:
            if (life := model.life) is None:
                life = model.life = _Life()
                self._start_task(self._live, model, life)
            await life.loaded.wait()
            if life.error is not None:
                raise ApiError(life.error.code, life.error.message)
        model.services[name].used_at = self._clock()

    def keep(self, name: str, seconds: float | None) -> None:
        """Has a model stay so many seconds when it is not used, or as configured."""
        if (model := self._all.get(name)) is not None:
            model.idle_seconds = self._bounds.idle_seconds if seconds is None else seconds

    async def unload(self, name: str) -> None:
        """Unloads a model; returns once its memory is free.

        Raises:
            ApiError: `unknown-model`; `busy` while programs hold something of it.
        """
        model = self._find(name)
        if model.service is not None and model.service.is_held:
            raise ApiError("busy", f"model {name!r} is in use: wait for its programs, or kill them")
        await self._unload(model, "by request")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carries the workers, and unloads what is not used, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            task_status.started()
            while True:
                await trio.sleep(LOOK_SECONDS)
                for model in self._idle(STAYS_SECONDS):
                    service = model.service
                    if service and self._clock() - service.used_at >= model.idle_seconds:
                        await self._unload(model, "idle")

    def _find(self, name: str) -> _Model:
        if name not in self._all:
            raise self._models.unknown(name)
        return self._all[name]

    async def _live(self, model: _Model, life: _Life) -> None:
        """One life of a model."""
        name = model.name
        try:
            with life.scope:
                await self._make_room(model)
                await self._load_and_serve(model, life)
        except ApiError as error:
            life.error = error
        except (WorkerFailed, OSError) as error:
            log.error("a model cannot be loaded", name=name, reason=str(error))
            life.error = ApiError("failed-dependency", f"model {name!r} cannot be loaded: {error}")
        finally:
            if not life.loaded.is_set() and life.error is None:
                life.error = ApiError("cancelled", f"model {name!r} was unloaded as it was loaded")
            model.life = None
            life.loaded.set()
            life.over.set()

    async def _load_and_serve(self, model: _Model, life: _Life) -> None:
        """Runs a worker until it is lost, or cancelled."""
        name = model.name
        config = self._config.model_copy(update={"models": (model.config,)})
        life.link = link = WorkerLink(config)
        dispatcher = Dispatcher(model.services, self._executor, link, self._timers, self._clock)
        link.on_hello = partial(self._begin, model, link)
        link.on_results = dispatcher.on_results
        link.answers = self._answers
        link.on_lost = partial(self._lose, model.services)
        log.info("loading a model by request", name=name)

        async def serves(hello: Hello) -> None:
            try:
                for each in hello.models:
                    await run_sync(self._models.read, each.name, each.folder)
            except UnusableTokenizer as error:
                raise WorkerFailed(str(error)) from None
            link.begin(hello)
            life.loaded.set()

        self._executor.after_turn.append(dispatcher.after_turn)
        try:
            reason = await link.live(serves)
            log.error("the worker of a model by request was lost", name=name, reason=reason)
            link.end(f"the inference worker of {name} was lost: {reason}")
        finally:
            link.end("unloaded")
            self._executor.after_turn.remove(dispatcher.after_turn)

    def _begin(self, model: _Model, link: WorkerLink, hello: Hello) -> None:
        self._models.start(hello.models, model.services, link.order)
        self._adapters.on_ready(model.services)
        log.info("model loaded by request", name=model.name, pid=hello.pid, bytes=model.bytes)

    async def _unload(self, model: _Model, why: str) -> None:
        if (life := model.life) is None:
            return
        log.info("unloading a model", name=model.name, why=why, bytes=model.bytes)
        for service in model.services.values():  # of instances that hold nothing of it
            for instance in [*service.spaces]:
                service.drop_instance(instance)
        self._lose(model.services, "unloaded")
        life.scope.cancel()
        await life.over.wait()

    def _idle(self, seconds: float) -> list[_Model]:
        """Those loaded that no instance has held for so long; the first to go first."""
        now = self._clock()
        found = []
        for model in self._all.values():
            if (service := model.service) is not None:
                if service.is_held:
                    service.used_at = now
                elif now - service.used_at >= seconds:
                    found.append((service.used_at, model))
        return [model for _, model in sorted(found, key=lambda each: each[0])]

    async def _make_room(self, model: _Model) -> None:
        """Unloads others until there is room for a model. Raises ApiError `out-of-resources`."""
        end = self._clock() + self._bounds.wait_seconds
        while (short := self._shortage(model)) is not None:
            idle = self._idle(STAYS_SECONDS)
            if idle:
                await self._unload(idle[0], f"for {model.name}")
                continue
            others = [o.name for o in self._all.values() if o is not model and o.life is not None]
            if not others:
                raise ApiError("out-of-resources", f"model {model.name!r}: {short}")
            if self._clock() > end:
                raise Shortage(
                    f"model {model.name!r}: {short}; in use are {', '.join(others)}",
                    "out-of-resources",
                )
            await trio.sleep(LOOK_SECONDS)

    def _shortage(self, model: _Model) -> str | None:
        """The room that a model lacks to be loaded now."""
        others = [o for o in self._all.values() if o.services or (o.life and o.life.link)]
        most, memory = self._bounds.most, self._bounds.memory
        if most is not None and len(others) >= most:
            return f"{most} are loaded, the value of on_demand.most"
        if memory is not None:
            left = memory - sum(other.bytes for other in others)
            whose = f"of on_demand.memory's {memory:,}"
        else:
            left = available_memory() - sum(o.bytes for o in others if not o.services)
            whose = "of the machine's"
        if model.bytes > left:
            return f"it takes some {model.bytes:,} bytes, and {max(left, 0):,} {whose} are left"
        return None


def _bytes_on_disk(source: str) -> int:
    """The size of a checkpoint's weights; 0 if they are not here yet."""
    path = PACKAGED[source].file if source in PACKAGED else Path(source).expanduser()
    files = [path] if path.is_file() else [*path.glob("*.safetensors")]
    return sum(file.stat().st_size for file in files)
