"""The models that the worker serves at present, and the tokenizers of all that it ever served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from pie_control.errors import ApiError
from pie_control.models.model import ModelService
from pie_control.models.tokenizer import TextCodec
from pie_control.resources.pools import FreeList
from pie_py.wire.operations import LOGIT_ROWS

if TYPE_CHECKING:
    from pie_control.instances.instance import Ends, Instance, Turns
    from pie_control.interception.history import Durations
    from pie_control.shares import Shares
    from pie_control.timers import Timers
    from pie_py.config.server import ServerConfig
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
LOOK_SECONDS = 1.0  # between two checks for instances that have waited too long for pages


class ServedModels:
    """The models by name, the default first. There are none while no worker is ready."""

    def __init__(
        self,
        config: ServerConfig,
        shares: Shares,
        turns: Turns,
        ends: Ends,
        durations: Durations,
        clock: Callable[[], float],
        timers: Timers,
        clock_ns: Callable[[], int],
    ) -> None:
        """Has no model yet.

        Args:
            config: of the server.
            shares: of the users.
            turns: gives instances their turns when their pages are back.
            ends: ends younger instances for want of resources.
            durations: of earlier waits, by kind.
            clock: trio's, in seconds.
            timers: by the clock.
            clock_ns: the executor's, of time lines.
        """
        self.services: dict[str, ModelService] = {}
        self.codecs: dict[str, TextCodec] = {}
        self._config = config
        self._shares = shares
        self._turns = turns
        self._ends = ends
        self._durations = durations
        self._clock = clock
        self._timers = timers
        self._clock_ns = clock_ns
        self._logit_rows = FreeList(LOGIT_ROWS)

    def start(self, descriptions: list[ModelDescription]) -> None:
        """A worker is ready and serves these models, with empty pools.

        Raises:
            UnusableTokenizer: if a model has none.
        """
        self._logit_rows = FreeList(LOGIT_ROWS)
        for description in descriptions:
            if description.name not in self.codecs:
                self.codecs[description.name] = TextCodec(Path(description.folder))
            end = self.codecs[description.name].end_token
            if end is not None and end not in description.stop_tokens:
                # Some checkpoints name it in the tokenizer's configuration alone.
                description.stop_tokens.append(end)
            self.add(description)

    def add(self, description: ModelDescription) -> ModelService:
        """Serves one model, without its tokenizer."""
        config = self._config
        service = self.services[description.name] = ModelService(
            description,
            config.scheduler,
            config.interception,
            config.prefix_cache,
            self._logit_rows,
            shares=self._shares,
            turns=self._turns,
            ends=self._ends,
            durations=self._durations,
            clock=self._clock,
            timers=self._timers,
            clock_ns=self._clock_ns,
        )
        return service

    def lose(self, reason: str) -> None:
        """The worker is gone with its pools: instances that hold something of a model fail."""
        for service in list(self.services.values()):
            service.scheduler.fail_all(reason)
            for instance in list(service.spaces):
                self._ends.fail(instance, f"worker-lost: {reason}")
        self.services.clear()

    def drop_instance(self, instance: Instance) -> None:
        """Frees all that an instance holds of any model. Idempotent."""
        for service in self.services.values():
            service.drop_instance(instance)

    def service(self, model: str) -> ModelService:
        """The service of a model.

        Raises:
            ApiError: `unknown-model`.
        """
        try:
            return self.services[model]
        except KeyError:
            raise self._unknown(model) from None

    def codec(self, model: str) -> TextCodec:
        """The tokenizer of a model.

        Raises:
            ApiError: `unknown-model`.
        """
        try:
            return self.codecs[model]
        except KeyError:
            raise self._unknown(model) from None

    def pages_of(self, instance: Instance) -> int:
        """Pages of an instance that are in the pools of all models."""
        spaces = (service.spaces.get(instance) for service in self.services.values())
        return sum(space.pages.resident for space in spaces if space is not None)

    def tokens_of(self, instance: Instance) -> int:
        """Filled slots of these pages: tokens of its contexts, shared ones once."""
        spaces = (service.spaces.get(instance) for service in self.services.values())
        return sum(
            int(space.page_pool.used[space.pages.all_resident()[1]].sum())
            for space in spaces
            if space is not None
        )

    async def run(self) -> None:
        """Gives another turn while instances wait for pages, until cancelled: waits have an end."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if any(s.evictor and s.evictor.waits for s in self.services.values()):
                self._turns.give_another()

    def _unknown(self, model: str) -> ApiError:
        served = ", ".join(self.services) or "none at the moment (the worker is restarting)"
        return ApiError("unknown-model", f"no model is called {model[:100]!r}; served: {served}")


def traits_of(model: ModelDescription) -> list[str]:
    """Names of the traits that a model offers, those of the control layer first."""
    return [*CONTROL_TRAITS, *model.traits]
