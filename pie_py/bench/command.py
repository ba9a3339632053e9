"""`pie-py bench`: the command line of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pie_py.build.errors import BuildError
from pie_py.config import EMBEDDED_MODEL, ModelConfig
from pie_py.server_process import ServerFailed

LANGUAGES = ("rust", "python")


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Reads whole numbers separated by commas; wrong ones are a usage error."""
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{value!r} is no list of positive numbers such as 1,8,32")
    return numbers


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; each call of what it gives tells what has just been done."""
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
        except (BuildError, ServerFailed) as error:
            raise click.ClickException(str(error)) from None


_model = click.option(
    "--model", default=EMBEDDED_MODEL, show_default=True, help="Folder or hub id of a checkpoint."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_languages = click.option(
    "--source",
    "languages",
    multiple=True,
    type=click.Choice(LANGUAGES),
    default=LANGUAGES,
    help="Rust component, Python source, or both (the default).",
)


@click.group("bench")
def command() -> None:
    """Measure this machine: launches, calls, completion. Each starts a server of its own."""


@command.command("launch")
@_model
@_json
@_languages
@click.option(
    "--at-once", callback=_numbers, metavar="N,N,...", default="1,64,256,896", show_default=True
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=4, show_default=True)
def launch_command(
    model: str,
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    rounds: int,
    tokens: int,
) -> None:
    """From the request to launch to the first message at the client, cold and warm."""
    from pie_py.bench.launch import launch

    with _progress(len(languages) * len(at_once) * rounds + 1) as progress:
        report = launch(ModelConfig(source=model), at_once, languages, rounds, tokens, progress)
    report.show(as_json)


@command.command("calls")
@_model
@_json
@_languages
@click.option("--live", callback=_numbers, metavar="N,N,...", default="1,896", show_default=True)
@click.option("--count", type=click.IntRange(100), default=20_000, show_default=True)
def calls_command(
    model: str, as_json: bool, languages: tuple[str, ...], live: tuple[int, ...], count: int
) -> None:
    """What a call costs that the control layer answers, seen from a guest."""
    from pie_py.bench.calls import calls

    with _progress(len(languages) * len(live) + 1) as progress:
        report = calls(ModelConfig(source=model), live, languages, count, progress)
    report.show(as_json)


@command.command("completion")
@_model
@_json
@_languages
@click.option(
    "--at-once", callback=_numbers, metavar="N,N,...", default="1,8,32", show_default=True
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--prompt", type=click.IntRange(1), default=64, show_default=True, help="Tokens.")
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--vllm-python", help="Python of an environment that has vLLM, to compare with.")
def completion_command(
    model: str,
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    rounds: int,
    prompt: int,
    tokens: int,
    vllm_python: str | None,
) -> None:
    """Time per token of concurrent completions against an ideal loop, and vLLM if it is there."""
    from pie_py.bench.completion import completion

    with _progress(len(at_once) * rounds + 2) as progress:
        report = completion(
            ModelConfig(source=model),
            at_once,
            languages,
            rounds,
            prompt,
            tokens,
            vllm_python,
            progress,
        )
    report.show(as_json)
