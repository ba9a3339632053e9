"""`pie-py bench`: what an operator measures of a machine. Each starts its own server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pie_py.bench.report import Report
from pie_py.config.model import EMBEDDED_MODEL, ModelConfig

Number = TypeVar("Number", int, float)
Function = TypeVar("Function", bound=Callable[..., Any])


def positive(kind: Callable[[str], Number], example: str) -> Callable[..., tuple[Number, ...]]:
    """Reads numbers above 0 of a kind, separated by commas, as a callback of click's."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Number, ...]:
        try:
            found = tuple(map(kind, value.split(",")))
        except ValueError:
            found = ()
        if not found or not min(found) > 0:
            raise click.BadParameter(f"{value!r} is no list of positive numbers such as {example}")
        return found

    return read


def _measured(function: Function) -> Function:
    """Gives a command the options of all."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, not a table."),
        click.option(
            "--at-once",
            default="1,8,32",
            show_default=True,
            callback=positive(int, "1,8,32"),
            metavar="N,N,...",
            help="Programs at the same time.",
        ),
        click.option("--model", default=EMBEDDED_MODEL, show_default=True, help="What is served."),
    ):
        function = option(function)
    return function


@click.group("bench")
def command() -> None:
    """Measure this machine: tokens per second, and what a token takes.

    Each command starts a server of its own.
    """


@command.command("throughput")
@_measured
@click.option(
    "--prompt", default=64, show_default=True, type=click.IntRange(1), help="Tokens of each prompt."
)
@click.option(
    "--tokens", default=256, show_default=True, type=click.IntRange(8), help="New tokens of each."
)
def throughput_command(
    model: str, at_once: tuple[int, ...], prompt: int, tokens: int, as_json: bool
) -> None:
    """Tokens per second, and milliseconds between tokens, of programs that run together."""
    from pie_py.bench.throughput import throughput

    _run(lambda: throughput(ModelConfig(source=model), at_once, prompt, tokens), as_json)


@command.command("hot-path")
@_measured
@click.option("--check", is_flag=True, help="Exit with status 1 if a ratio is above the limit.")
@click.option("--limit", default=1.1, show_default=True, help="Of the ratio to accepted numbers.")
def hot_path_command(
    model: str, at_once: tuple[int, ...], as_json: bool, check: bool, limit: float
) -> None:
    """Calls of functions for one token: a ratio that no other work on the machine changes."""
    from pie_py.bench.hot_path import PROGRAM, counted, hot_path

    served, programs = ModelConfig(source=model), {"python": PROGRAM.read_bytes()}
    report = _run(lambda: hot_path(served, counted(served, programs, at_once), limit), as_json)
    if check and not all(goal.met for goal in report.goals):
        raise click.exceptions.Exit(1)


def _run(measure: Callable[[], Report], as_json: bool) -> Report:
    from pie_py.client.errors import ClientError
    from pie_py.config.child import first_error
    from pie_py.config.server_process import ServerFailed

    try:
        report = measure()
    except Exception as error:
        reason = first_error(error)
        if isinstance(reason, ServerFailed | ClientError | RuntimeError):
            raise click.ClickException(str(reason)) from None
        raise
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        report.show()
    return report
