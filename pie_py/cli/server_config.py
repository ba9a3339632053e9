"""The options that make up a server's configuration, for `serve` and `run`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from pydantic_settings import SettingsError

Function = TypeVar("Function", bound=Callable[..., Any])

_PREFIX = "PIE_PY_"  # of the environment's variables, as ServerConfig has it
_MODEL_FIELDS = (
    "page_size",
    "kv_pages",
    "dtype",
    "device",
    "kv_dtype",
    "gpu_memory_utilization",
)


def model_options(function: Function) -> Function:
    """Adds the options of `server_config` but for the endpoint."""
    for option in (
        click.option("--threads", type=int, help="Threads of the inference worker."),
        click.option("--max-instances", type=int, help="Most instances alive at once."),
        click.option("--device", help="cpu, cuda or cuda:N; a GPU if there is one unless told."),
        click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"])),
        click.option(
            "--kv-dtype",
            type=click.Choice(["auto", "fp8"]),
            help="Of keys and values in the pool; the model's unless told.",
        ),
        click.option(
            "--gpu-memory-utilization",
            type=click.FloatRange(0, 1, min_open=True),
            metavar="SHARE",
            help="Of a GPU's memory, for weights, pools and computing.  [default: 0.9]",
        ),
        click.option(
            "--tensor-parallel-size",
            type=click.IntRange(1),
            metavar="N",
            help="GPUs that compute each model together.  [default: 1]",
        ),
        click.option(
            "--kv-pages", type=int, help="Pages of the KV pool; by free memory unless told."
        ),
        click.option(
            "--page-size", type=click.Choice(["8", "16", "24", "32"]), help="Tokens a page."
        ),
        click.option(
            "--mcp",
            "mcp_servers",
            multiple=True,
            metavar="NAME=COMMAND",
            help="An MCP server whose tools inferlets may call: a command, or a URL. Repeatable.",
        ),
        click.option(
            "--allow-http-network",
            "http_networks",
            multiple=True,
            metavar="NETWORK",
            help="Addresses that HTTP requests may go to though they are not public, as 10.0.0.0/8."
            " Repeatable.",
        ),
        click.option(
            "--allow-http",
            "http_hosts",
            multiple=True,
            metavar="HOST[:PORT]",
            help="A host that inferlets may send HTTP requests to: a name, *.NAME, an address, or *;"
            " ports 80 and 443, or PORT, or :* for any. None unless told. Repeatable.",
        ),
        click.option(
            "--adapter",
            "adapters",
            multiple=True,
            metavar="NAME=FOLDER",
            help="A LoRA adapter of the model, as PEFT saves it. Repeatable.",
        ),
        click.option(
            "--model",
            "models",
            multiple=True,
            metavar="MODEL",
            help="A folder or hub id of a model to serve; the embedded one unless told. Repeatable.",
        ),
        click.option(
            "--config",
            "file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file with the fields of ServerConfig; options and environment win.",
        ),
    ):
        function = option(function)
    return function


def server_config(
    *,
    endpoint: str | None,
    file: Path | None,
    models: tuple[str, ...],
    threads: int | None,
    max_instances: int | None,
    tensor_parallel_size: int | None = None,
    http_hosts: tuple[str, ...] = (),
    http_networks: tuple[str, ...] = (),
    mcp_servers: tuple[str, ...] = (),
    adapters: tuple[str, ...] = (),
    **model_fields: Any,
) -> Any:
    """Builds a ServerConfig: defaults, then the file, then the environment, then the options.

    Raises:
        click.UsageError: naming what is wrong.
    """
    from pydantic_settings import (
        BaseSettings,
        PydanticBaseSettingsSource,
        TomlConfigSettingsSource,
    )

    from pie_py.config.server import ModelConfig, ServerConfig

    class FromFile(ServerConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            found = (init_settings, env_settings)
            return found if file is None else (*found, TomlConfigSettingsSource(cls, file))

    options: dict[str, Any] = {
        key: value
        for key, value in (
            ("endpoint", endpoint),
            ("worker_threads", threads),
            ("max_instances", max_instances),
            ("tensor_parallel_size", tensor_parallel_size),
            ("http", _http_fields(http_hosts, http_networks)),
            ("mcp", {"servers": dict(map(_mcp_server, mcp_servers))} if mcp_servers else None),
        )
        if value is not None
    }
    chosen = {k: v for k, v in model_fields.items() if k in _MODEL_FIELDS and v is not None}
    if adapters:
        if len(models) > 1:
            raise click.UsageError(
                "--adapter goes with one --model; name the adapters of several in a --config file"
            )
        chosen["adapters"] = dict(map(_adapter, adapters))
    with config_errors(file):
        if models:
            options["models"] = [{"source": source, **chosen} for source in models]
        config = FromFile(**options)
        if chosen and not models:
            changed = [
                ModelConfig(**{**model.model_dump(exclude_unset=True), **chosen})
                for model in config.models
            ]
            config = config.model_copy(update={"models": tuple(changed)})
    return config


@contextmanager
def config_errors(file: Path | None = None) -> Iterator[None]:
    """Turns what is wrong with a configuration, from a file or not, into a usage error.

    Raises:
        click.UsageError: naming what is wrong.
    """
    import tomllib

    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    try:
        yield
    except ValidationError as error:
        fields = {} if file is None else tomllib.loads(file.read_text(encoding="utf-8"))
        faults = [_fault(fault, file, fields) for fault in error.errors(include_url=False)]
        raise click.UsageError("the configuration is wrong: " + "; ".join(faults)) from None
    except SettingsError as error:
        raise click.UsageError(_bad_variable(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise click.UsageError(f"{file}: {error}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{file} is no TOML file: it is not UTF-8 ({error.reason} at byte {error.start})"
        ) from None


def _fault(fault: ErrorDetails, file: Path | None, fields: dict[str, Any]) -> str:
    """What is wrong with one field, with the variable or the file, of these fields, that it comes from."""
    place = ".".join(map(str, fault["loc"]))
    variable = f"{_PREFIX}{'__'.join(map(str, fault['loc']))}".upper()
    if variable in os.environ and os.environ[variable] == fault["input"]:
        place = variable
    elif _is_in(fields, fault):
        place = f"{file}: {place}"
    return f"{place}: {fault['msg'].removeprefix('Value error, ')}"


def _is_in(fields: Any, fault: ErrorDetails) -> bool:
    """Whether a file's fields have what is wrong."""
    try:
        for key in fault["loc"]:
            fields = fields[key]
    except (KeyError, IndexError, TypeError):
        return False
    return bool(fields == fault["input"])


def _bad_variable(error: SettingsError) -> str:
    """What is wrong with a variable that should hold JSON. Its text is not repeated: it may be a secret."""
    cause = error.__cause__
    if not isinstance(cause, json.JSONDecodeError):
        return f"the environment's {_PREFIX} variables are wrong: {error}"
    names = [
        name
        for name, value in os.environ.items()
        if value == cause.doc and name.upper().startswith(_PREFIX)
    ]
    return (
        f"the environment's {' or '.join(names) or f'{_PREFIX} variables'} is no JSON: {cause};"
        f" write JSON, or single fields as {_PREFIX}LIMITS__MEMORY=1000000"
    )


def _http_fields(hosts: tuple[str, ...], networks: tuple[str, ...]) -> dict[str, Any] | None:
    """Fields of `HttpConfig`; None without options."""
    fields = {"allow": hosts, "allow_networks": networks}
    return {name: values for name, values in fields.items() if values} or None


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
