"""`pie-py bench`: what an operator measures of a machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import click

from pie_py.config.model import EMBEDDED_MODEL, ModelConfig

Number = TypeVar("Number", int, float)


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


@click.group("bench")
def command() -> None:
    """Measure this machine, with a server of its own."""


@command.command("throughput")
@click.option("--model", default=EMBEDDED_MODEL, show_default=True, help="What is served.")
@click.option(
    "--at-once",
    default="1,8,32",
    show_default=True,
    callback=positive(int, "1,8,32"),
    metavar="N,N,...",
    help="Programs at the same time.",
)
@click.option(
    "--prompt", default=64, show_default=True, type=click.IntRange(1), help="Tokens of each prompt."
)
@click.option(
    "--tokens", default=256, show_default=True, type=click.IntRange(8), help="New tokens of each."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, not a table.")
def throughput_command(
    model: str, at_once: tuple[int, ...], prompt: int, tokens: int, as_json: bool
) -> None:
    """Tokens per second, and milliseconds between tokens, of programs that run together."""
    from pie_py.bench.decoding import throughput
    from pie_py.client.errors import ClientError
    from pie_py.config.child import first_error
    from pie_py.config.server_process import ServerFailed

    try:
        report = throughput(ModelConfig(source=model), at_once, prompt, tokens)
    except Exception as error:
        reason = first_error(error)
        if isinstance(reason, ServerFailed | ClientError | RuntimeError):
            raise click.ClickException(str(reason)) from None
        raise
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        report.show()
