"""The models that the worker serves at present, and the tokenizers of all that it ever served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from pie_control.errors import ApiError
from pie_control.interception.advice import MAX_TOOL, tool_kind
from pie_control.models.model import ModelDependencies, ModelService
from pie_control.models.tokenizer import TextCodec
from pie_control.models.tokenizer_check import read_codec
from pie_control.resources.pools import FreeList
from pie_control.scheduler.next_plan import share_worker
from pie_py.wire.plan import LOGIT_ROWS, NoTokens

if TYPE_CHECKING:
    from pie_control.instances.instance import Account, Instance
    from pie_control.scheduler.commands.run import RunCommand
    from pie_py.wire.plan import ModelDescription

# Traits that the control layer offers with every model.
CONTROL_TRAITS = (
    "runtime",
    "session",
    "grammar",
    "messaging",
    "store",
    "http",
    "mcp",
    "prefix-cache",
)


class ServedModels:
    """The models by name, the default first. There are none while no worker is ready."""

    def __init__(self, deps: ModelDependencies) -> None:
        self.services: dict[str, ModelService] = {}  # of all workers
        self.resident: dict[str, ModelService] = {}  # of the first, which serves from the start
        self.on_demand = [model.called for model in deps.config.models if model.on_demand]
        self.seen: dict[str, ModelDescription] = {}  # of those, as they were loaded last
        self.codecs: dict[str, TextCodec] = {}
        self.holds: dict[str, set[str]] = {}  # why plans of models are held back, over workers
        self._deps = deps
        self._logit_rows = FreeList(LOGIT_ROWS)

    @property
    def names(self) -> list[str]:
        """Of all that programs may use, the default first: some are loaded by request."""
        return [*self.resident, *self.on_demand]

    def read(self, name: str, folder: str) -> None:
        """Reads a model's tokenizer, once. Blocking.

        Raises:
            UnusableTokenizer: if it has none.
        """
        if name not in self.codecs:
            self.codecs[name] = read_codec(Path(folder), self._deps.config.confined)

    def start(
        self,
        descriptions: list[ModelDescription],
        own: dict[str, ModelService],
        order: Callable[[NoTokens], None] = lambda message: None,
    ) -> None:
        """A worker is ready and serves these models, with empty pools; they are its `own` from now
        on, and `order` sends it messages.

        Raises:
            UnusableTokenizer: if a model has none.
        """
        rows = FreeList(LOGIT_ROWS)
        for description in descriptions:
            name = description.name
            self.read(name, description.folder)
            codec = self.codecs[name]
            end = codec.end_token
            if end is not None and end not in description.stop_tokens:
                # Some checkpoints name it in the tokenizer's configuration alone.
                description.stop_tokens.append(end)
            # Some checkpoints name an end that their network never chooses.
            here = [each for each in description.stop_tokens if each < description.vocab_size]
            description.stop_tokens[:] = here
            self.add(description, own, rows)
            if name in self.on_demand:
                self.seen[name] = description
            unused = codec.no_tokens(description.vocab_size)
            if ids := [each for each in unused if each not in description.stop_tokens]:
                order(NoTokens(name, ids))
        if len(descriptions) > 1:
            share_worker([service.scheduler for service in own.values()])

    def add(
        self,
        description: ModelDescription,
        own: dict[str, ModelService] | None = None,
        rows: FreeList | None = None,
    ) -> ModelService:
        """Serves one model, without its tokenizer: of the first worker by default."""
        service = ModelService(description, self._deps, rows or self._logit_rows)
        service.scheduler.holds = self.holds.setdefault(description.name, service.scheduler.holds)
        self.services[description.name] = service
        (self.resident if own is None else own)[description.name] = service
        return service

    def lose(self, own: dict[str, ModelService], reason: str) -> None:
        """A worker is gone with its pools: instances that hold something of a model fail."""
        for service in list(own.values()):
            service.scheduler.fail_all(reason)
            for instance in list(service.spaces):
                self._deps.ends.fail(instance, f"worker-lost: {reason}")
        for name in own:
            del self.services[name]
        own.clear()

    def drop_instance(self, instance: Instance) -> None:
        """Frees all that an instance holds of any model. Idempotent."""
        instance.most_pages = self.most_pages_of(instance)
        instance.page_seconds = self.page_seconds_of(instance)
        for service in self.services.values():
            service.drop_instance(instance)

    def await_tools(self, instance: Instance, tools: list[str]) -> None:
        """The conversation, a turn of which an instance has served, waits for tools."""
        kind = tool_kind("+".join(sorted({*tools}))[:MAX_TOOL])
        for service in self.services.values():
            service.prefixes.wait(instance, kind)

    def go_on(self, instance: str, user: str | None) -> tuple[float, Account] | None:
        """The conversation goes on, if it waits and is the user's, or any user's with None; the
        instance may have been forgotten. For how many seconds it has waited, and on whose account.
        """
        ended = [service.prefixes.go_on(instance, user) for service in self.services.values()]
        return max((each for each in ended if each is not None), default=None)

    def await_person(self, instance: Instance) -> None:
        """The conversation, a turn of which an instance has served, may go on by a person."""
        for service in self.services.values():
            service.prefixes.await_person(instance)

    def service(self, model: str) -> ModelService:
        """The service of a model. Raises ApiError `unknown-model`."""
        try:
            return self.services[model]
        except KeyError:
            raise self.unknown(model) from None

    def is_away(self, model: str) -> bool:
        """True if a model may be used and has to be loaded first."""
        return model not in self.services and model in self.on_demand

    def description(self, model: str) -> ModelDescription:
        """The facts of a model, as they were if it is unloaded. Raises ApiError `unknown-model`."""
        seen = self.seen.get(model)
        return self.service(model).description if seen is None else seen

    def codec(self, model: str) -> TextCodec:
        """The tokenizer of a model. Raises ApiError `unknown-model`."""
        try:
            return self.codecs[model]
        except KeyError:
            raise self.unknown(model) from None

    def kv_of(self, instance: Instance) -> tuple[int, int]:
        """Pages of an instance in all models' pools, and its contexts' tokens, shared ones once."""
        pages = tokens = 0
        for service in self.services.values():
            if (space := service.spaces.get(instance)) is not None:
                pages += space.pages.resident
                tokens += int(space.page_pool.used[space.pages.all_resident()[1]].sum())
        return pages, tokens + sum(run.filled for run in runs_of(instance))

    def most_pages_of(self, instance: Instance) -> dict[str, int]:
        """The most pages that an instance has had at once, by name of the models that it uses."""
        spaces = ((name, service.spaces.get(instance)) for name, service in self.services.items())
        now = {name: space.pages.most for name, space in spaces if space is not None}
        return {**instance.most_pages, **now}

    def page_seconds_of(self, instance: Instance) -> float:
        """Pages times seconds that an instance has held them in the pools of all models."""
        spaces = (service.spaces.get(instance) for service in self.services.values())
        now = sum(space.pages.seconds for space in spaces if space is not None)
        return instance.page_seconds + now

    async def run(self) -> None:
        """Gives a turn each second, until cancelled: instances' waits for pages have an end."""
        while True:
            await trio.sleep(1.0)
            self._deps.turns.give_another()

    def unknown(self, model: str) -> ApiError:
        """The error that there is no model of a name, or that it is not loaded."""
        if model in self.on_demand:
            return ApiError("unknown-model", f"model {model!r} is not loaded: a queue loads it")
        served = ", ".join(self.names) or "none at the moment (the worker is restarting)"
        return ApiError("unknown-model", f"no model is called {model[:100]!r}; served: {served}")


def runs_of(instance: Instance) -> list[RunCommand]:
    """Runs that an instance has not given up."""
    return [run for queue in instance.queues.values() for run in queue.runs.values()]


def traits_of(model: ModelDescription) -> list[str]:
    """Names of the traits that a model offers, those of the control layer first."""
    return [*CONTROL_TRAITS, *model.traits]
