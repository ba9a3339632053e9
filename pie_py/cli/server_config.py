"""A server's configuration from defaults, file, environment and command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli.config_errors import config_errors, refuse_misspelt_variables
from pie_py.cli.http_options import gateway_fields

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig

# Options by the names of `config_options`, and the fields of ServerConfig that they set.
_SERVER_FIELDS = {
    "endpoint": "endpoint",
    "threads": "worker_threads",
    "max_instances": "max_instances",
    "tensor_parallel_size": "tensor_parallel_size",
}
# Options that set the field of the same name in every model.
_MODEL_FIELDS = (
    "page_size",
    "kv_pages",
    "dtype",
    "quantize",
    "deterministic",
    "device",
    "kv_dtype",
    "gpu_memory_utilization",
)


def server_config(file: Path | None = None, **options: Any) -> ServerConfig:
    """Builds a configuration: defaults, then the file (TOML, with the fields of ServerConfig), then
    the environment, then the options: values of `config_options` by name, and `endpoint`, where
    None and () say nothing.

    Raises:
        click.UsageError: naming what is wrong.
    """
    given = {
        name: value
        for name, value in options.items()
        if value not in (None, ()) and value is not False
    }
    refuse_misspelt_variables()
    with config_errors(file):
        models = _model_fields(given)
        config = _read(file, _server_fields(given, models))
        if models and not {"models", "on_demand"} & given.keys():
            config = _with_models_changed(config, models)
    return config


def names_of(config: ServerConfig) -> str:
    """The models of a configuration, for a person."""
    return ", ".join(model.name or model.source for model in config.models)


def _read(file: Path | None, fields: dict[str, Any]) -> ServerConfig:
    """The configuration of these fields; the rest comes from environment, file, defaults."""
    from pydantic_settings import PydanticBaseSettingsSource, TomlConfigSettingsSource

    from pie_py.config.server import ServerConfig

    class FromFile(ServerConfig):
        @classmethod
        def settings_customise_sources(
            cls, *sources: Any, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            found = super().settings_customise_sources(*sources, **named)
            return found if file is None else (*found, TomlConfigSettingsSource(cls, file))

    return FromFile(**fields)


def _server_fields(given: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    """Fields of ServerConfig that the options set."""
    fields = {field: given[name] for name, field in _SERVER_FIELDS.items() if name in given}
    if log := {
        name: given[f"log_{name}"] for name in ("level", "format") if f"log_{name}" in given
    }:
        fields["log"] = log
    if gateway := gateway_fields(given):
        fields["gateway"] = gateway
    if http := _http_fields(given.get("http_hosts", ()), given.get("http_networks", ())):
        fields["http"] = http
    if "mcp_servers" in given:
        fields["mcp"] = {"servers": dict(map(_mcp_server, given["mcp_servers"]))}
    if "models" in given or "on_demand" in given:
        wanted = {False: given.get("models", ()), True: given.get("on_demand", ())}
        fields["models"] = [
            {"source": source, "on_demand": later, **models}
            for later, sources in wanted.items()
            for source in sources
        ]
    return fields


def _model_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of ModelConfig that the options set, in every model.

    Raises:
        click.UsageError: if adapters are given for several models.
    """
    fields = {name: given[name] for name in _MODEL_FIELDS if name in given}
    if "adapters" in given:
        if len((*given.get("models", ()), *given.get("on_demand", ()))) > 1:
            raise click.UsageError(
                "--adapter goes with one --model; name the adapters of several in a --config file"
            )
        fields["adapters"] = dict(map(_adapter, given["adapters"]))
    return fields


def _with_models_changed(config: ServerConfig, fields: dict[str, Any]) -> ServerConfig:
    """The configuration, with these fields set in each of its models."""
    from pie_py.config.model import ModelConfig

    changed = [
        ModelConfig(**{**model.model_dump(exclude_unset=True), **fields}) for model in config.models
    ]
    return config.model_copy(update={"models": tuple(changed)})


def with_adapters(config: ServerConfig, adapters: Mapping[str, Mapping[str, Path]]) -> ServerConfig:
    """The configuration, with a program's adapters by model for models that have none and may have
    some.
    """
    changed = tuple(
        model.model_copy(update={"adapters": dict(adapters[model.source])})
        if model.source in adapters and not model.adapters and not model.deterministic
        else model
        for model in config.models
    )
    return config.model_copy(update={"models": changed})


def _http_fields(hosts: tuple[str, ...], networks: tuple[str, ...]) -> dict[str, Any]:
    """Fields of `HttpConfig` that the options set."""
    fields = {"allow": hosts, "allow_networks": networks}
    return {name: values for name, values in fields.items() if values}


def _adapter(text: str) -> tuple[str, Path]:
    """Name and folder of NAME=FOLDER.

    Raises:
        click.UsageError: if it is not that, or there is no such folder.
    """
    name, _, folder = text.partition("=")
    path = Path(folder).expanduser()
    if not name or not folder:
        raise click.UsageError(f"--adapter {text!r} is not NAME=FOLDER")
    if not path.is_dir():
        raise click.UsageError(f"--adapter {text!r}: there is no folder {folder}")
    return name, path.absolute()


def _mcp_server(text: str) -> tuple[str, dict[str, Any]]:
    """Name and fields of `McpServerConfig` of NAME=COMMAND or NAME=URL.

    Raises:
        click.UsageError: if it is neither.
    """
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
