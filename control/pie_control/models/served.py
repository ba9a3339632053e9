"""The models that the worker serves at present, and the tokenizers of all that it ever served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from pie_control.errors import ApiError
from pie_control.models.model import ModelDependencies, ModelService
from pie_control.models.tokenizer import TextCodec
from pie_control.models.tokenizer_check import read_codec
from pie_control.resources.pools import FreeList
from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.fair_share import ActiveUsers
from pie_py.wire.plan import LOGIT_ROWS

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance
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
        """Has no model yet."""
        self.services: dict[str, ModelService] = {}
        self.codecs: dict[str, TextCodec] = {}
        self._deps = deps
        self._logit_rows = FreeList(LOGIT_ROWS)

    def start(self, descriptions: list[ModelDescription]) -> None:
        """A worker is ready and serves these models, with empty pools.

        Raises:
            UnusableTokenizer: if a model has none.
        """
        self._logit_rows = FreeList(LOGIT_ROWS)
        for description in descriptions:
            if description.name not in self.codecs:
                self.codecs[description.name] = read_codec(
                    Path(description.folder), self._deps.config.confined
                )
            end = self.codecs[description.name].end_token
            if end is not None and end not in description.stop_tokens:
                # Some checkpoints name it in the tokenizer's configuration alone.
                description.stop_tokens.append(end)
            self.add(description)
        if len(descriptions) > 1:
            active = ActiveUsers()
            for policy in [service.scheduler.policy for service in self.services.values()]:
                if isinstance(policy, Adaptive):
                    policy.share(active)

    def add(self, description: ModelDescription) -> ModelService:
        """Serves one model, without its tokenizer."""
        service = ModelService(description, self._deps, self._logit_rows)
        self.services[description.name] = service
        return service

    def lose(self, reason: str) -> None:
        """The worker is gone with its pools: instances that hold something of a model fail."""
        for service in list(self.services.values()):
            service.scheduler.fail_all(reason)
            for instance in list(service.spaces):
                self._deps.ends.fail(instance, f"worker-lost: {reason}")
        self.services.clear()

    def drop_instance(self, instance: Instance) -> None:
        """Frees all that an instance holds of any model. Idempotent."""
        instance.most_pages = self.most_pages_of(instance)
        for service in self.services.values():
            service.drop_instance(instance)

    def service(self, model: str) -> ModelService:
        """The service of a model. Raises ApiError `unknown-model`."""
        try:
            return self.services[model]
        except KeyError:
            raise self._unknown(model) from None

    def codec(self, model: str) -> TextCodec:
        """The tokenizer of a model. Raises ApiError `unknown-model`."""
        try:
            return self.codecs[model]
        except KeyError:
            raise self._unknown(model) from None

    def kv_of(self, instance: Instance) -> tuple[int, int]:
        """Pages of an instance in the pools of all models, and their filled slots: tokens of its
        contexts, shared ones once.
        """
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

    async def run(self) -> None:
        """Gives another turn while instances wait for pages, until cancelled: waits have an end."""
        while True:
            await trio.sleep(1.0)
            if any(s.evictor and s.evictor.waits for s in self.services.values()):
                self._deps.turns.give_another()

    def _unknown(self, model: str) -> ApiError:
        served = ", ".join(self.services) or "none at the moment (the worker is restarting)"
        return ApiError("unknown-model", f"no model is called {model[:100]!r}; served: {served}")


def runs_of(instance: Instance) -> list[RunCommand]:
    """Runs that an instance has not given up."""
    return [run for queue in instance.queues.values() for run in queue.runs.values()]


def traits_of(model: ModelDescription) -> list[str]:
    """Names of the traits that a model offers, those of the control layer first."""
    return [*CONTROL_TRAITS, *model.traits]
