"""Loads and unloads adapters while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog
import trio

from pie_control.data_folder import SettingsFolder
from pie_control.errors import ApiError, invalid, unsupported
from pie_control.models.adapters import Adapters, Key
from pie_control.tasks import Service
from pie_py.wire.plan import AdapterDone, LoadAdapter, UnloadAdapter

if TYPE_CHECKING:
    from pie_control.models.model import ModelService
    from pie_control.models.served import ServedModels

log = structlog.get_logger("pie.adapters")


class _Kept(NamedTuple):
    """Where an adapter is read again."""

    folder: str  # or the file that was uploaded
    version: str  # of that
    stays: bool = True  # over a restart of the server


@dataclass(slots=True, eq=False)
class _Loading:
    """An adapter that the worker is loading."""

    key: Key
    kept: _Kept
    adapters: Adapters
    is_wanted: bool = True
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
        self._kept: dict[str, dict[Key, _Kept]] = {}  # by model
        for entry in on_disk.all():
            kept = _Kept(entry["folder"], entry["version"])
            self._kept.setdefault(entry["model"], {})[entry["user"], entry["name"]] = kept

    async def load(
        self,
        model: str,
        name: str,
        folder: str,
        user: str = "",
        version: str = "",
        *,
        stays: bool = True,
    ) -> None:
        """Loads an adapter, which inferlets may use from then on. It goes on if the caller gives
        up.

        Args:
            model: which it is for.
            name: what inferlets call it.
            folder: of the server's machine, as PEFT saves it; or a file that was uploaded.
            user: who alone may use it, and whose former one of the name it replaces; all may use
                it by default.
            version: of the file, its hash. The one that is loaded is not loaded again.
            stays: over a restart of the server.

        Raises:
            ApiError: `unknown-model`, `unsupported`, `already-exists`, `limit-exceeded`, `busy`,
                `worker-lost`, `invalid-argument` (the folder is wrong or does not fit).
        """
        service = self._models.service(model)
        if why := service.description.no_adapters:
            raise unsupported(why)
        adapters, key, kept = service.adapters, (user, name), _Kept(folder, version, stays)
        if version and adapters.version_of(user, name) == version:
            self._keep(model, key, kept)
            return
        if user:
            service.adapter_share.check(user, 1, adapters.free)
        slot = adapters.reserve(user, name)
        loading = self._loading[model, slot] = _Loading(key, kept, adapters)
        self._send(LoadAdapter(model, slot, folder))
        await loading.done.wait()
        if loading.error is not None:
            raise loading.error

    def _keep(self, model: str, key: Key, kept: _Kept) -> None:
        """Has the next worker have one, and, if it stays, the next server. Raises ApiError: the
        disk is full.
        """
        self._kept.setdefault(model, {})[key] = kept
        path = _path(model, key)
        if kept.stays:
            facts = {"model": model, "name": key[1], "folder": kept.folder}
            self._on_disk.put(*path, **facts, user=key[0], version=kept.version)
        else:
            self._on_disk.remove(*path)

    def unload(self, model: str, name: str) -> None:
        """Has no other instance use an adapter of all users; it is unloaded when none does any
        more. What is being loaded is unloaded once it is.

        Raises:
            ApiError: `unknown-model`, `not-found`.
        """
        if not self._forget(model, ("", name), ""):
            self._models.service(model).adapters.remove("", name)

    def unload_version(self, user: str, name: str, version: str) -> None:
        """Unloads what a user has uploaded under a name, if it has this hash, of all models."""
        for model in {*self._kept, *(of for of, _ in self._loading)}:
            with suppress(ApiError):
                self._forget(model, (user, name), version)

    def _forget(self, model: str, key: Key, version: str) -> bool:
        """Unloads one if it has this version; False if there is none, nor will be."""
        known = False
        for (of, _), loading in self._loading.items():
            if (of, loading.key, loading.kept.version) == (model, key, version):
                loading.is_wanted, known = False, True
        kept = self._kept.get(model, {}).get(key)
        if kept is not None and kept.version == version:  # or the next worker had it
            known = True
            del self._kept[model][key]
            self._on_disk.remove(*_path(model, key))
        adapters = self._models.service(model).adapters
        if adapters.version_of(*key) == version:
            known = True
            adapters.remove(*key)
            log.info("adapter unloaded", model=model, name=key[1], user=key[0])
        return known

    @property
    def versions(self) -> set[str]:
        """Hashes of the files that are loaded, or will be again."""
        return {kept.version for each in self._kept.values() for kept in each.values()}

    def _free(self, model: str, service: ModelService, slot: int) -> None:
        """No instance uses a slot any more."""
        service.prefixes.drop_adapter(slot)
        self._send(UnloadAdapter(model, slot))

    def on_done(self, answer: AdapterDone) -> None:
        """Takes the worker's answer."""
        loading = self._loading.pop((answer.model, answer.slot))
        key, kept = loading.key, loading.kept
        if answer.error is None:
            loading.adapters.add(key, kept.version)
            log.info(
                "adapter loaded", model=answer.model, user=key[0], name=key[1], folder=kept.folder
            )
            try:
                self._keep(answer.model, key, kept)
            except ApiError as error:
                loading.error = error
            if not loading.is_wanted:
                self._forget(answer.model, key, kept.version)
        else:
            loading.adapters.give_up(key)
            loading.error = invalid(answer.error)
        loading.done.set()

    def on_lost(self, models: Collection[str]) -> None:
        """The worker of these models is gone, and what it held."""
        for place in [place for place in self._loading if place[0] in models]:
            loading = self._loading.pop(place)
            loading.error = ApiError(
                "worker-lost", f"the inference worker was lost while it loaded {loading.key[1]!r}"
            )
            loading.done.set()

    def on_ready(self, models: Iterable[str]) -> None:
        """A worker of these models is ready: it gets what the one before had."""
        for model in models:
            service = self._models.service(model)
            service.adapters.on_free = partial(self._free, model, service)
            for key, kept in self._kept.get(model, {}).items():
                self._start_task(self._load_again, model, key, kept)

    async def _load_again(self, model: str, key: Key, kept: _Kept) -> None:
        user, name = key
        if self._kept[model].get(key) is not kept:
            return  # unloaded meanwhile
        try:
            await self.load(model, name, kept.folder, user, kept.version, stays=kept.stays)
        except ApiError as error:
            if error.code not in ("worker-lost", "unknown-model", "unsupported"):  # unlike later
                self._kept[model].pop(key, None)
                self._on_disk.remove(*_path(model, key))
            log.error("an adapter was lost with its worker", name=name, reason=str(error))


def _path(model: str, key: Key) -> tuple[str, ...]:
    """The key of an adapter's entry on the disk: one of all users had no user there before."""
    user, name = key
    return (model, name, user) if user else (model, name)
