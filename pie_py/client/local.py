"""The server that `Client.local` uses, or starts."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import anyio
import anyio.to_thread

from pie_py.client.errors import ServerUnreachable
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.server_process import ServerFailed, temporary_server

log = logging.getLogger(__name__)


@asynccontextmanager
async def local_endpoint(endpoint: str, settings: dict[str, Any]) -> AsyncIterator[str]:
    """The endpoint, if a server answers there and no settings are given; else that of a new one.
    Raises `ServerUnreachable`: it does not start, or the settings are wrong.
    """
    run = anyio.to_thread.run_sync
    if not settings and await run(answers, parse_endpoint(endpoint)):
        yield endpoint
        return
    if find_spec("pie_control") is None:
        raise ServerUnreachable(
            f"no server at {endpoint}, and none can be started: this is the client alone; pip"
            " install pie-py"
        )
    # These take long to import, and few need them.
    from pie_py.build.python import runtime_file
    from pie_py.config.settings import read_settings

    try:
        config = read_settings(**settings)
    except ValueError as error:
        raise ServerUnreachable(str(error)) from None
    if not runtime_file(config.cache_folder).is_file():
        log.warning("The first Python program takes some 15 s: it builds its runtime, once.")
    manager = temporary_server(config)
    server = await run(manager.__enter__)
    try:
        try:
            started = await run(server.wait_ready, log.warning, abandon_on_cancel=True)
        except ServerFailed as error:
            raise ServerUnreachable(f"the server did not start: {error}") from None
        yield started
    finally:
        with anyio.CancelScope(shield=True):
            await run(manager.__exit__, None, None, None)
