"""Mistakes of a configuration that show before a model is loaded."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pie_py.config.endpoint import BadEndpoint, answers, in_use, parse_endpoint
from pie_py.models.packaged import PACKAGED

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig

_WORKER = "pie_inference"  # another one may know other models


def check_at_once(config: ServerConfig, *, http: bool) -> None:
    """Refuses models that cannot be found here or elsewhere, or have one name, files that are
    missing, and, of a server with HTTP, addresses that are taken, and HTTP that no user could use.
    Raises `click.UsageError`: naming what is wrong. Raises `click.ClickException`: an address is
    taken.
    """
    _check_names_and_files(config)
    if config.worker_module == _WORKER:
        for model in config.models:
            check_source(model.source)
    if http:
        _check_addresses(config)
    if http and config.gateway.enabled:
        check_users(config)
    if config.telemetry.endpoint is not None and find_spec("opentelemetry") is None:
        raise click.UsageError(
            "`telemetry.endpoint` is set, and OpenTelemetry is not installed:"
            " pip install 'pie-py[telemetry]'"
        )


def _check_names_and_files(config: ServerConfig) -> None:
    names = [model.called for model in config.models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.UsageError(
            f"two models are called {twice[0]}: give one of them another `name` in a --config file"
        )
    for model in config.models:
        for name, folder in model.adapters.items():
            if not folder.expanduser().is_dir():
                raise click.UsageError(
                    f"the adapter {name} of {model.called}: there is no folder {folder}"
                )
    for field in ("tls_certificate", "tls_key"):
        file = getattr(config.gateway, field)
        if file is not None and not file.is_file():
            raise click.UsageError(f"gateway.{field}: there is no file {file}")


def check_source(source: str) -> None:
    """Refuses a model that is neither here nor may be one of a hub: `click.UsageError`."""
    from pie_py.config.model import EMBEDDED_MODEL  # takes long

    path = Path(source).expanduser()
    if not source:
        raise click.UsageError("a model's name is empty: leave `--model` out, or name one")
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise click.UsageError(f"{source} is no model: a .gguf file is, or a checkpoint's folder")
    if path.exists() or source.startswith(EMBEDDED_MODEL) or source in PACKAGED:
        if path.is_dir() and not (path / "config.json").is_file():
            raise click.UsageError(f"{source} has no config.json: it is no checkpoint's folder")
        return
    # With one slash it is a hub id, unless it seems to be a path.
    is_path = path.is_absolute() or source.startswith((".", "~")) or path.suffix == ".gguf"
    if source.count("/") == 1 and not is_path and not path.parent.is_dir():
        return
    folder = path.parent if "/" in source else Path()
    while not folder.is_dir():
        path, folder = folder, folder.parent
    beside = sorted(each.name for each in folder.iterdir())
    near = [str(folder / name) for name in get_close_matches(path.name, beside)]
    near += get_close_matches(source, [EMBEDDED_MODEL, *PACKAGED])
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "name a folder with a config.json, a .gguf file, a hub id such as owner/name, or one"
        f" of {EMBEDDED_MODEL}, {', '.join(PACKAGED)}"
    )
    raise click.UsageError(f"there is no model {source}; {hint}")


def _check_addresses(config: ServerConfig) -> None:
    with suppress(BadEndpoint):  # the server's own message is the one
        if answers(endpoint := parse_endpoint(config.endpoint).resolved()):
            raise click.ClickException(in_use(endpoint))
        http = config.gateway.enabled and config.gateway.http
        if http and answers(parse_endpoint(f"tcp://{http}")):
            raise click.ClickException(
                f"{http} is in use already: choose another with --http HOST:PORT, or --no-http"
            )


def check_users(config: ServerConfig) -> None:
    """Refuses an endpoint that other machines reach, and no user could use: `click.UsageError`."""
    from pie_py.config.gateway import NO_USERS
    from pie_py.config.keys import KeyStore

    try:
        local = config.gateway.is_local and parse_endpoint(config.endpoint).resolved().is_loopback
    except BadEndpoint:  # the server's own message is the one
        return
    if not local and not KeyStore(config.data_folder).users():
        raise click.UsageError(NO_USERS)
