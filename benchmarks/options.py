"""The options of benchmarks: fields of a dataclass that say how the command line reads them."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from pie_py.bench.command import positive
from pie_py.config.model import EMBEDDED_MODEL, ModelConfig

LANGUAGES = ("rust", "python")
_KEY = "click"  # of a field's metadata


def option(flag: str, **attributes: Any) -> Any:
    """A field of a benchmark's settings, set by a click option.

    Args:
        flag: as people type it: `--rounds`.
        attributes: those of `click.Option`.
    """
    attributes = {"show_default": "default" in attributes, **attributes}
    return dataclasses.field(metadata={_KEY: (flag, attributes)})


def click_options(settings: type[Any]) -> list[click.Parameter]:
    """The command line's options for the fields of a settings class, in their order."""
    found: list[click.Parameter] = []
    for field in dataclasses.fields(settings):
        flag, attributes = field.metadata[_KEY]
        found.append(click.Option([flag, field.name], **attributes))
    return found


def _model(context: click.Context, parameter: click.Parameter, value: str) -> ModelConfig:
    from benchmarks.checkpoints import bench_model

    return ModelConfig(source=bench_model(value))


def _models(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[ModelConfig, ...]:
    return tuple(_model(context, parameter, value) for value in values)


def model(default: str = EMBEDDED_MODEL) -> Any:
    """The model to serve, a `ModelConfig`."""
    text = "Folder, hub id or name of a model; `tiny` and `small` have random weights, made here."
    return option("--model", default=default, callback=_model, help=text)


def models(default: str) -> Any:
    """The models to serve, one after the other: a tuple of `ModelConfig`."""
    text = "Folder, hub id or name of a model, or `tiny` or `small`. Repeatable."
    return option("--model", default=[default], multiple=True, callback=_models, help=text)


def number_list(flag: str, default: str, text: str | None = None) -> Any:
    """Whole numbers above 0, separated by commas: a tuple of int."""
    read = positive(int, "1,8,32")
    return option(flag, default=default, callback=read, metavar="N,N,...", help=text)


def rate_list(flag: str, default: str, text: str | None = None) -> Any:
    """Numbers above 0, separated by commas: a tuple of float."""
    read = positive(float, "0.5,1,2")
    return option(flag, default=default, callback=read, metavar="R,R,...", help=text)


def count(flag: str, default: int, text: str | None = None, least: int = 1) -> Any:
    """A whole number of at least `least`."""
    return option(flag, default=default, type=click.IntRange(least), help=text)


def real(flag: str, default: float, text: str | None = None) -> Any:
    """A number."""
    return option(flag, default=default, type=float, help=text)


def some_of(
    flag: str, choices: tuple[str, ...], default: tuple[str, ...], text: str | None = None
) -> Any:
    """One or more of several names: a tuple of str."""
    kind = click.Choice(choices)
    return option(flag, default=default, multiple=True, type=kind, help=text, show_default=False)


def languages() -> Any:
    """Which of the benchmark's inferlets to run."""
    text = "Rust component or Python source; by default both."
    return some_of("--source", LANGUAGES, LANGUAGES, text)


def at_once(default: str) -> Any:
    """How many inferlets run at the same time, one count after the other."""
    return number_list("--at-once", default, "Inferlets at the same time.")


def rest() -> Any:
    """How long the server refills its warm instances before the next measurement."""
    return real("--rest", 2.0, "Seconds between measurements, to refill warm instances.")


def rounds(default: int) -> Any:
    """How often everything is measured, in turns."""
    return count("--rounds", default)


def prompt() -> Any:
    """Tokens of each prompt."""
    return count("--prompt", 64, "Tokens of each prompt.")


def tokens(default: int) -> Any:
    """New tokens of each inferlet; fewer than 8 leave nothing to measure."""
    return count("--tokens", default, "New tokens of each inferlet.", least=8)
