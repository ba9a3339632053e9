"""Loads and unloads adapters while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from pie_control.data_folder import SettingsFolder
from pie_control.errors import ApiError
from pie_control.models.adapters import Adapters
from pie_control.tasks import Service
from pie_py.wire.plan import AdapterDone, LoadAdapter, UnloadAdapter

if TYPE_CHECKING:
    from pie_control.models.served import ServedModels

log = structlog.get_logger("pie.adapters")


@dataclass(slots=True, eq=False)
class _Loading:
    """An adapter that the worker is loading."""

    name: str
    folder: str
    adapters: Adapters
    done: trio.Event = field(default_factory=trio.Event)
    error: ApiError | None = None


class AdapterLoader(Service):
    """Tells the worker what to load, and a new worker what the one before had, also after a restart
    of the server.

    Adapters of the configuration are not its business: every worker loads those by itself.
    """

    def __init__(
        self,
        models: ServedModels,
        send: Callable[[LoadAdapter | UnloadAdapter], None],
        on_disk: SettingsFolder,
    ) -> None:
        """Takes how to send to the worker, which does what it is sent in order, and what is on disk
        for the next start.
        """
        self._models = models
        self._send = send
        self._loading: dict[tuple[str, int], _Loading] = {}  # by model, slot
        self._on_disk = on_disk
        self._folders: dict[str, dict[str, str]] = {}  # by model, name
        for entry in on_disk.all():
            self._folders.setdefault(entry["model"], {})[entry["name"]] = entry["folder"]

    async def load(self, model: str, name: str, folder: str) -> None:
        """Loads an adapter from a folder as PEFT saves it, on the server's machine; inferlets may
        use it from then on. It goes on if the caller gives up.

        Raises:
            ApiError: `unknown-model`, `unsupported`, `already-exists`, `limit-exceeded`,
                `worker-lost`, `invalid-argument` (the folder is wrong or does not fit).
        """
        service = self._models.service(model)
        if why := service.description.no_adapters:
            raise ApiError("unsupported", why)
        adapters = service.adapters
        slot = adapters.reserve(name)
        loading = self._loading[model, slot] = _Loading(name, folder, adapters)
        self._send(LoadAdapter(model, slot, folder))
        await loading.done.wait()
        if loading.error is not None:
            raise loading.error
        self._on_disk.put(model, name, model=model, name=name, folder=folder)

    def unload(self, model: str, name: str) -> None:
        """Unloads an unused adapter. Raises ApiError `unknown-model`, `not-found`, `busy`."""
        service = self._models.service(model)
        adapter = service.adapters.remove(name)
        service.prefixes.drop_adapter(adapter.slot)
        self._folders.get(model, {}).pop(name, None)
        self._on_disk.remove(model, name)
        self._send(UnloadAdapter(model, adapter.slot))
        log.info("adapter unloaded", model=model, name=name)

    def on_done(self, answer: AdapterDone) -> None:
        """Takes the worker's answer."""
        loading = self._loading.pop((answer.model, answer.slot))
        if answer.error is None:
            loading.adapters.add(loading.name)
            self._folders.setdefault(answer.model, {})[loading.name] = loading.folder
            log.info("adapter loaded", model=answer.model, name=loading.name, folder=loading.folder)
        else:
            loading.adapters.give_up(loading.name)
            loading.error = ApiError("invalid-argument", answer.error)
        loading.done.set()

    def on_lost(self, models: Collection[str]) -> None:
        """The worker of these models is gone, and what it held."""
        for place in [place for place in self._loading if place[0] in models]:
            loading = self._loading.pop(place)
            loading.error = ApiError(
                "worker-lost", f"the inference worker was lost while it loaded {loading.name!r}"
            )
            loading.done.set()

    def on_ready(self, models: Iterable[str]) -> None:
        """A worker of these models is ready: it gets what the one before had."""
        for model in models:
            for name, folder in self._folders.pop(model, {}).items():
                self._start_task(self._load_again, model, name, folder)

    async def _load_again(self, model: str, name: str, folder: str) -> None:
        try:
            await self.load(model, name, folder)
        except ApiError as error:
            if error.code == "worker-lost":  # the next one gets it
                self._folders.setdefault(model, {})[name] = folder
            elif error.code not in ("unknown-model", "unsupported"):  # unlike the next time
                self._on_disk.remove(model, name)
            log.error("an adapter was lost with its worker", name=name, reason=str(error))
