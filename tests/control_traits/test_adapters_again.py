"""Adapters that were loaded while the server runs: a new worker gets what the one before had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from pie_control.data_folder import SettingsFolder
from pie_control.errors import ApiError
from pie_control.models.adapter_loading import AdapterLoader
from pie_control.models.adapters import Adapters
from pie_py.wire.plan import AdapterDone, LoadAdapter

TAKES = SimpleNamespace(no_adapters="")


async def test_a_worker_that_dies_over_them_does_not_lose_them() -> None:
    services: dict[str, Any] = {}
    sent: list[Any] = []
    async with trio.open_nursery() as nursery:
        models: Any = SimpleNamespace(service=lambda model: services[model])
        loader = AdapterLoader(models, sent.append, SettingsFolder(None))
        await nursery.start(loader.run)

        async def new_worker() -> None:
            services["m"] = SimpleNamespace(adapters=Adapters("m", []), description=TAKES)
            loader.on_ready(["m"])
            await trio.testing.wait_all_tasks_blocked()

        await new_worker()
        nursery.start_soon(loader.load, "m", "x", "/x")
        await trio.testing.wait_all_tasks_blocked()
        loader.on_done(AdapterDone("m", 0, None))
        for _ in range(3):  # each dies before it has loaded it
            loader.on_lost(["m"])
            await trio.testing.wait_all_tasks_blocked()
            await new_worker()
        loader.on_done(AdapterDone("m", 0, None))
        assert services["m"].adapters.names() == ["x"]
        loader.on_lost(["m"])
        await new_worker()
        services["m"].adapters.on_free = lambda slot: sent.append("freed")
        loader.unload("m", "x")  # as it is loaded again
        loader.on_done(AdapterDone("m", 0, None))
        assert services["m"].adapters.names() == []
        loader.on_lost(["m"])
        await new_worker()
        with pytest.raises(ApiError, match="not-found"):
            loader.unload("m", "x")
        nursery.cancel_scope.cancel()
    assert sent == [*[LoadAdapter("m", 0, "/x")] * 5, "freed"]


def test_a_restart_does_not_lose_them(tmp_path: Path) -> None:
    def kept() -> SettingsFolder:
        return SettingsFolder(tmp_path, "model", "name", "folder", user="", version="")

    async def server(answers: Sequence[str | None], *calls: str) -> list[str]:
        """What one server has loaded after its worker's answers and some calls."""
        service: Any = SimpleNamespace(
            adapters=Adapters("m", []),
            prefixes=SimpleNamespace(drop_adapter=lambda slot: None),
            description=TAKES,
        )
        models: Any = SimpleNamespace(service=lambda model: service)
        async with trio.open_nursery() as nursery:
            loader = AdapterLoader(models, lambda message: None, kept())
            await nursery.start(loader.run)
            loader.on_ready(["m"])
            for name in calls:
                nursery.start_soon(loader.load, "m", name, f"/{name}")
            await trio.testing.wait_all_tasks_blocked()
            for slot, error in enumerate(answers):
                loader.on_done(AdapterDone("m", slot, error))
            await trio.testing.wait_all_tasks_blocked()
            names: list[str] = service.adapters.names()
            if len(calls) == 2:
                loader.unload("m", calls[0])
            nursery.cancel_scope.cancel()
        return names

    assert trio.run(server, [None, None], "x", "y") == ["x", "y"]  # and x is unloaded
    (kept_file,) = tmp_path.glob("*.json")
    kept_file.write_text('{"model": "m", "name": "y", "folder": "/y"}')  # before there were users'
    assert trio.run(server, [None]) == ["y"]
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "other.json").write_text("{}")
    assert trio.run(server, ["its folder is gone"]) == []
    assert list(kept().all()) == []


async def test_one_whose_client_has_left_is_kept_too(tmp_path: Path) -> None:
    folder = SettingsFolder(tmp_path, "model", "name", "folder", user="", version="")
    service: Any = SimpleNamespace(adapters=Adapters("m", []), description=TAKES)
    models: Any = SimpleNamespace(service=lambda model: service)
    loader = AdapterLoader(models, lambda message: None, folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loader.load, "m", "x", "/x")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    loader.on_done(AdapterDone("m", 0, None))
    assert service.adapters.names() == ["x"]
    assert [entry["name"] for entry in folder.all()] == ["x"]


async def test_one_that_is_given_up_while_it_loads_is_unloaded_after(tmp_path: Path) -> None:
    folder = SettingsFolder(tmp_path, "model", "name", "folder", user="", version="")
    service: Any = SimpleNamespace(adapters=Adapters("m", []), description=TAKES)
    service.adapter_share = SimpleNamespace(check=lambda user, count, free: None)
    models: Any = SimpleNamespace(service=lambda model: service)
    loader = AdapterLoader(models, lambda message: None, folder)
    freed: list[int] = []
    service.adapters.on_free = freed.append
    async with trio.open_nursery() as nursery:
        for user in ("ann", "bob"):
            nursery.start_soon(loader.load, "m", "x", "/x", user, "1")
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    loader.unload_version("bob", "x", "1")
    loader.unload_version("ann", "x", "former")
    for slot in range(2):
        loader.on_done(AdapterDone("m", slot, None))
    assert (service.adapters.names("ann"), service.adapters.names("bob"), freed) == (["x"], [], [1])
    assert [entry["user"] for entry in folder.all()] == ["ann"]
