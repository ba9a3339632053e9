"""Adapters that were loaded while the server runs: a new worker gets what the one before had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from pie_control.models.adapter_loading import AdapterLoader
from pie_control.models.adapters import Adapters
from pie_py.wire.plan import AdapterDone, LoadAdapter


def test_a_worker_that_dies_over_them_does_not_lose_them() -> None:
    async def main() -> None:
        services: dict[str, Any] = {}
        sent: list[Any] = []
        async with trio.open_nursery() as nursery:
            models: Any = SimpleNamespace(service=lambda model: services[model])
            loader = AdapterLoader(models, sent.append)
            await nursery.start(loader.run)

            async def new_worker() -> None:
                services["m"] = SimpleNamespace(adapters=Adapters("m", []))
                loader.on_ready()
                await trio.testing.wait_all_tasks_blocked()

            await new_worker()
            nursery.start_soon(loader.load, "m", "x", "/x")
            await trio.testing.wait_all_tasks_blocked()
            loader.on_done(AdapterDone("m", 0, None))
            for _ in range(3):  # each dies before it has loaded it
                loader.on_lost()
                await trio.testing.wait_all_tasks_blocked()
                await new_worker()
            loader.on_done(AdapterDone("m", 0, None))
            assert services["m"].adapters.names == ["x"]
            nursery.cancel_scope.cancel()
        assert sent == [LoadAdapter("m", 0, "/x")] * 4

    trio.run(main)
