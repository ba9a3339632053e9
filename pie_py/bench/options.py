"""Options that the benchmarks share, and their progress bar."""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pie_py.bench.turns import Turns
from pie_py.build.errors import BuildError
from pie_py.client.errors import ClientError
from pie_py.client.server_process import ServerFailed
from pie_py.config.server import EMBEDDED_MODEL, ModelConfig

LANGUAGES = ("rust", "python")
Function = TypeVar("Function", bound=Callable[..., Any])


def numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Reads whole numbers separated by commas; wrong ones are a usage error."""
    try:
        found = tuple(int(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{value!r} is no list of positive numbers such as 1,8,32")
    return found


def rates(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    """Reads numbers separated by commas; wrong ones are a usage error."""
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or not min(found) > 0:
        raise click.BadParameter(f"{value!r} is no list of positive numbers such as 0.5,1,2")
    return found


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; each call of what it gives tells what has just been done.

    Within it, SIGTERM ends this process as an exception does, so that no server or peer stays behind.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task("starting", total=steps)

        def tell(text: str) -> None:
            bars.update(task, advance=1, description=text)
            if not console.is_terminal:
                console.print(text, highlight=False)

        try:
            yield tell
        except Exception as error:
            reason = _first(error)
            if isinstance(reason, BuildError | ServerFailed | ClientError | RuntimeError):
                raise click.ClickException(str(reason)) from None
            raise


def _first(error: BaseException) -> BaseException:
    """What went wrong first in a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _bench_model(context: click.Context, parameter: click.Parameter, value: str) -> ModelConfig:
    from pie_py.bench.checkpoints import bench_model

    return ModelConfig(source=bench_model(value))


def bench_models(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[ModelConfig, ...]:
    """Reads the models of a repeatable option."""
    return tuple(_bench_model(context, parameter, value) for value in values)


def model(default: str = EMBEDDED_MODEL) -> Callable[[Function], Function]:
    """One model to serve."""
    return click.option(
        "--model",
        default=default,
        show_default=True,
        callback=_bench_model,
        help="Folder or hub id of a checkpoint; `tiny` and `small` are random ones, made here.",
    )


def counts(default: str) -> Callable[[Function], Function]:
    """How many instances at once, in turn."""
    return click.option(
        "--at-once", callback=numbers, metavar="N,N,...", default=default, show_default=True
    )


def tokens(default: int) -> Callable[[Function], Function]:
    """New tokens of each."""
    return click.option(
        "--tokens", type=click.IntRange(8), default=default, show_default=True, help="New ones."
    )


def rounds(default: int) -> Callable[[Function], Function]:
    """How often everything is measured, in turns."""
    return click.option("--rounds", type=click.IntRange(1), default=default, show_default=True)


vllm_python = click.option(
    "--vllm-python", metavar="PYTHON", help="The Python of an environment that has vLLM."
)
prompt = click.option(
    "--prompt", type=click.IntRange(1), default=64, show_default=True, help="Tokens."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
plot_file = click.option(
    "--plot",
    "plot_file",
    metavar="FILE|FOLDER",
    help="Draw what was measured, as PNG, SVG or PDF; in a folder, as an SVG named after the benchmark.",
)
languages = click.option(
    "--source",
    "languages",
    multiple=True,
    type=click.Choice(LANGUAGES),
    default=LANGUAGES,
    help="Rust component, Python source, or both (the default).",
)


def turns(at_once: str, often: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of what is measured in turns, given as `turns`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def gathered(**values: Any) -> None:
            own = {field.name: values.pop(field.name) for field in dataclasses.fields(Turns)}
            function(turns=Turns(**own), **values)

        for option in (tokens(64), prompt, rounds(often), counts(at_once), languages):
            gathered = option(gathered)
        return gathered

    return decorate
