"""The server as one user sees it: the models by the names of HTTP, and snapshots of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

from pie_gateway.problems import Problem, asked, unknown_model
from pie_py.client import Client

FRESH_SECONDS = 5.0  # a list of models of this age is believed
# Unless a name is missing from one of this age; snapshots are taken no more often.
REFRESH_SECONDS = 0.5


class ModelName(msgspec.Struct, frozen=True):
    """A name of `/v1/models`: a model, alone or through a LoRA adapter."""

    id: str
    model: str
    adapter: str | None = None


class Catalog:
    """The served models, asked for every few seconds."""

    def __init__(
        self,
        client: Client,
        aliases: Mapping[str, str],
        clock: Callable[[], float],
        wait_seconds: float,
    ) -> None:
        """Takes further names, and how long a request waits for a model that is loaded for it."""
        self._client = client
        self._wait_seconds = wait_seconds
        self._aliases = aliases
        self._clock = clock
        self._models: list[dict[str, Any]] = []
        self._read_at = float("-inf")

    async def models(self, age: float = FRESH_SECONDS) -> list[dict[str, Any]]:
        """Descriptions of the models, the default first, at most so many seconds old; of one that
        was never loaded little is known. Raises `Problem`: 503: the server does not answer, or
        still loads them.
        """
        if not self._models or self._clock() - self._read_at > age:
            self._models = await asked(self._client.models(unloaded=True))
            self._read_at = self._clock()
        if not self._models:
            raise _loading()
        return self._models

    def forget(self) -> None:
        """The names are others now: they are asked for again."""
        self._models = []

    async def names(self, age: float = FRESH_SECONDS) -> list[ModelName]:
        """All names: the models, then their adapters, then the operator's further ones."""
        models = await self.models(age)
        found = [ModelName(str(model["name"]), str(model["name"])) for model in models]
        taken = {name.id for name in found}
        for model in models:
            for adapter in model["adapters"]:
                # Models may have adapters of the same name, or one that a model has.
                plain = adapter if adapter not in taken else f"{model['name']}:{adapter}"
                taken.add(plain)
                found.append(ModelName(plain, str(model["name"]), str(adapter)))
        for alias, name in self._aliases.items():
            of = [each for each in found if each.id == (name or found[0].id)]
            found += [replace(each, id=alias) for each in of if alias not in taken]
        return found

    async def find(self, name: str) -> ModelName:
        """The model of a name, or the only one where a request names none, once it is loaded.
        Raises `Problem`: 503 while models are loaded; 404; 400 without a name where there are
        several.
        """
        found = await self.look_up(name)
        await self.load(found)
        return found

    async def load(self, name: ModelName, keep: float | None = None) -> None:
        """Has a model loaded that is loaded by request, and kept for so many seconds when it is not
        used. Raises `Problem`: 503 if it takes too long.
        """
        described = await self.describe(name.model)
        if not described.get("on_demand"):
            if described["state"] == "loading":
                raise _loading()
            return
        try:
            with anyio.fail_after(self._wait_seconds):
                await asked(self._client.load_model(name.model, keep))
        except TimeoutError:
            text = f"model {name.id!r} is still being loaded: ask again"
            raise Problem(503, text, code="loading", retry_after=5.0) from None
        if described["state"] != "loaded":
            self.forget()  # more is known of it now

    async def look_up(self, name: str) -> ModelName:
        """As `find`, of a model that may not be loaded."""
        if not name:
            models = await self.models()
            if len(models) != 1:
                served = ", ".join(str(each["name"]) for each in models)
                raise Problem(400, f"`model` is missing: one of {served}", param="model")
            name = str(models[0]["name"])
        for age in (FRESH_SECONDS, REFRESH_SECONDS):
            names = await self.names(age)
            for found in names:
                if found.id in (name, name.removesuffix(":latest")):  # as Ollama's clients have it
                    return found
        raise unknown_model(name, [each.id for each in names])

    async def describe(self, model: str) -> dict[str, Any]:
        """The description of a model that is served."""
        return next(each for each in await self.models() if each["name"] == model)


def _loading() -> Problem:
    return Problem(503, "the server still loads its model", code="loading", retry_after=1.0)


@dataclass(frozen=True)
class Snapshot:
    """The server at a moment."""

    at: float  # seconds of the gateway's clock
    info: Mapping[str, Any]
    stats: Mapping[str, Mapping[str, Any]]  # by model
    instances: Sequence[Mapping[str, Any]]  # of the user, with those that ended lately


class Snapshots:
    """The newest snapshot; requests of the same moment share one."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._newest: Snapshot | None = None
        self._reading = anyio.Lock()

    async def newest(self) -> Snapshot:
        """The server as it is. Raises `Problem`: the control process does not answer."""
        async with self._reading:
            found = self._newest
            if found is None or self._clock() - found.at >= REFRESH_SECONDS:
                info = await asked(self._client.server_info())
                stats = await asked(self._client.stats())
                instances = await asked(self._client.instances(ended=True))
                found = self._newest = Snapshot(self._clock(), info, stats, instances)
            return found
