"""A server's configuration from defaults, file, environment and command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli.config_errors import config_errors, refuse_misspelt_variables

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig

# The fields that options set, by the options' names: of the server, or of a section of it; those of
# `models` in every model.
_FIELDS = {
    "endpoint": "endpoint",
    "threads": "worker_threads",
    "max_instances": "max_instances",
    "tensor_parallel_size": "tensor_parallel_size",
    "log_level": "log.level",
    "log_format": "log.format",
    "http_hosts": "http.allow",
    "http_networks": "http.allow_networks",
    "mcp_servers": "mcp.servers",
    **{
        name: f"gateway.{name}"
        for name in ("served_model_names", "cors_origins", "tls_key", "tls_certificate", "http")
    },
    **{
        name: f"models.{name}"
        for name in ("page_size", "kv_pages", "dtype", "quantize", "deterministic", "device")
    },
    **{name: f"models.{name}" for name in ("kv_dtype", "gpu_memory_utilization", "adapters")},
}


def server_config(file: Path | None = None, **options: Any) -> ServerConfig:
    """Builds a configuration: defaults, then the file (TOML, with the fields of ServerConfig), then
    the environment, then the options: values of `config_options` by name, and `endpoint`, where
    None and () say nothing. Raises `click.UsageError`: naming what is wrong.
    """
    given = {
        name: value
        for name, value in options.items()
        if value not in (None, ()) and value is not False
    }
    refuse_misspelt_variables()
    sections = _sections(given)
    models, fields = sections.pop("models", {}), {**sections.pop("", {}), **sections}
    sources = [(source, False) for source in given.get("models", ())]
    sources += [(source, True) for source in given.get("on_demand", ())]
    if "adapters" in models and len(sources) > 1:
        raise click.UsageError(
            "--adapter goes with one --model; name the adapters of several in a --config file"
        )
    if sources:
        fields["models"] = [{"source": one, "on_demand": later, **models} for one, later in sources]
    from pie_py.config.settings import read_settings

    with config_errors(file):
        config = read_settings(file, **fields)
        return _with_models_changed(config, models) if models and not sources else config


def names_of(config: ServerConfig) -> str:
    """The models of a configuration, for a person."""
    return ", ".join(model.name or model.source for model in config.models)


def _sections(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields that options set, by their sections; the server's own are of none, "". Raises
    `click.UsageError`: an option is wrong, or options do not go together.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if name in _FIELDS:
            section, _, field = _FIELDS[name].rpartition(".")
            if name in _READ:
                value = dict(map(_READ[name], value))
            found.setdefault(section, {})[field] = value
    gateway = found.get("gateway", {})
    if ("tls_key" in gateway) != ("tls_certificate" in gateway):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    if given.get("no_http"):
        if gateway:
            raise click.UsageError("--no-http goes with no other option of HTTP")
        found["gateway"] = {"enabled": False}
    return found


def _with_models_changed(config: ServerConfig, fields: dict[str, Any]) -> ServerConfig:
    """The configuration, with these fields set in each of its models."""
    from pie_py.config.model import ModelConfig

    changed = [
        ModelConfig(**{**model.model_dump(exclude_unset=True), **fields}) for model in config.models
    ]
    return config.model_copy(update={"models": tuple(changed)})


def with_adapters(config: ServerConfig, adapters: Mapping[str, Mapping[str, Path]]) -> ServerConfig:
    """The configuration, with a program's adapters for models that have none and may have some."""
    changed = tuple(
        model.model_copy(update={"adapters": dict(adapters[model.source])})
        if model.source in adapters and not model.adapters and not model.deterministic
        else model
        for model in config.models
    )
    return config.model_copy(update={"models": changed})


def _adapter(text: str) -> tuple[str, Path]:
    """Name and folder of NAME=FOLDER. Raises `click.UsageError` if there is none."""
    name, _, folder = text.partition("=")
    path = Path(folder).expanduser()
    if not name or not folder:
        raise click.UsageError(f"--adapter {text!r} is not NAME=FOLDER")
    if not path.is_dir():
        raise click.UsageError(f"--adapter {text!r}: there is no folder {folder}")
    return name, path.absolute()


def _alias(text: str) -> tuple[str, str]:
    """A further name, and the model of ALIAS=MODEL. Raises `click.UsageError` if there is none."""
    name, _, model = text.partition("=")
    if not name:
        raise click.UsageError("--served-model-name: the further name is missing")
    return name, model


def _mcp_server(text: str) -> tuple[str, dict[str, Any]]:
    """Name and fields of NAME=COMMAND or NAME=URL. Raises `click.UsageError` if it is neither."""
    import shlex

    name, _, what = text.partition("=")
    try:
        words = shlex.split(what)
    except ValueError as error:
        raise click.UsageError(f"--mcp {text!r}: {error}") from None
    if not name or not words:
        raise click.UsageError(f"--mcp {text!r} is not NAME=COMMAND or NAME=URL")
    if what.startswith(("http://", "https://")):
        return name, {"url": what}
    return name, {"command": words[0], "args": words[1:]}


# Options of which each gives a name and what it stands for.
_READ: dict[str, Callable[[str], tuple[str, Any]]] = {
    "adapters": _adapter,
    "mcp_servers": _mcp_server,
    "served_model_names": _alias,
}
