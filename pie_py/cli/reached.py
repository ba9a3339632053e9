"""The server that a command uses: one that runs, or one that it starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli import kept_servers
from pie_py.cli.connect import At, fail
from pie_py.cli.console import progress
from pie_py.cli.known_at_once import check_at_once
from pie_py.cli.names import find_name
from pie_py.cli.pull import pull_those_of
from pie_py.cli.server_config import names_of, server_config

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig
    from pie_py.config.server_process import Tell

TALKING_MODEL = "smollm2"  # what answers a person where no server runs and no model is named


def use_running(endpoint: str | None, options: dict[str, Any]) -> bool:
    """True if a running server is to be used rather than one started."""
    from pie_py.config.endpoint import DEFAULT_ENDPOINT, BadEndpoint, answers, parse_endpoint

    wanted = [name for name, value in options.items() if value not in (None, (), "")]
    if endpoint is not None:
        if wanted:
            raise click.UsageError(
                "--endpoint names a running server; a model and other server options are for"
                " `pie-py serve`, or for a run without --endpoint"
            )
        from pie_py.client.client import server_endpoint  # slow, and a server may start meanwhile

        try:
            server_endpoint(endpoint)
        except BadEndpoint as error:
            raise click.UsageError(str(error)) from None
        return True
    return not wanted and answers(parse_endpoint(DEFAULT_ENDPOINT))


def talking_server(at: At, model: str | None) -> tuple[At, str]:
    """A server for `ask` and `chat`, and the model's name there, "" for its first.

    That is the one at the endpoint; else one that stays and serves the model, of a file or folder
    that one as it is; else one is started, which stays until it is idle. Raises `click.UsageError`:
    the server of a given endpoint does not serve the model.
    """
    if use_running(at.endpoint, {}):
        if model is None:
            return at, ""
        with at.client() as client:
            served = [facts["name"] for facts in client.models()]
        if (name := find_name(model, served)) is not None:
            return at, name
        if at.endpoint is not None:
            raise click.UsageError(
                f"no model is called {model!r}; served there: {', '.join(served)}"
            )
    options = {"models": (model or TALKING_MODEL,)}
    key = kept_servers.server_key(options)
    if model is not None and Path(model).expanduser().exists():  # others may have its name
        if (kept_at := kept_servers.find(key)) is not None:
            return at._replace(endpoint=kept_at), ""
    elif (found := kept_servers.find_serving(model)) is not None:
        endpoint, name = found
        return at._replace(endpoint=endpoint), name
    config = server_config(endpoint=None, file=None, **options)
    check_at_once(config, http=False)
    pull_those_of(config.models)
    with ExitStack() as stack:
        wait = stack.enter_context(kept_servers.kept_server(config, key, lines=False))
        return at._replace(endpoint=started(config, "python", wait)), ""


def started(config: ServerConfig, kind: str | None, wait: Callable[[Tell], str]) -> str:
    """The endpoint of a server, for which it waits; it is to run a program of this kind."""
    from pie_py.config.server_process import ServerFailed

    if kind in ("python", "javascript"):
        prepare_runtime(kind, config.cache_folder)
    try:
        with progress(f"starting a server with {names_of(config)}") as tell:
            return wait(tell)
    except ServerFailed as error:
        fail(f"the server did not start: {error}")


def prepare_runtime(kind: str, cache_folder: Path) -> Path:
    """Builds a missing runtime, showing progress: a server builds Python's, and no other."""
    from pie_py.build import BuildError
    from pie_py.build.runtimes import RUNTIMES

    try:
        with ExitStack() as shown:
            show = lambda text: shown.enter_context(progress(text))  # noqa: E731
            found: Path = RUNTIMES[kind].runtime_component(cache_folder, show)
            return found
    except BuildError as error:
        fail(error)


def prepare_at(at: At, kind: str) -> None:
    """Builds the runtime that a running server of this user lacks and does not build."""
    if kind != "javascript":
        return
    with at.client() as client:
        folder = Path(client.server_info().get("cache_folder", ""))
    if folder.is_absolute() and folder.is_dir() and folder.stat().st_uid == os.getuid():
        prepare_runtime(kind, folder)
