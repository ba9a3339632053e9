"""`pie-py batch`: a program for each line of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import click

from pie_py.cli.ask import model_option
from pie_py.cli.batch_files import Answers, BadLine, Line, read_lines
from pie_py.cli.connect import (
    EXIT_FAILED,
    FILE,
    NEW_FILE,
    At,
    errors_shown,
    repeatable,
    server_options,
)
from pie_py.cli.console import say
from pie_py.cli.reached import talking_server
from pie_py.cli.stream import Interrupt, run_interruptible
from pie_py.cli.target import BadTarget, find_target
from pie_py.client import Client, ConnectionLost, ServerUnreachable
from pie_py.client.remote.call import Sender
from pie_py.client.remote.program import Main
from pie_py.client.remote.several import Given, call_each
from pie_py.config.printable import printable
from pie_py.wire.modules import BadProgram

COMPLETION = "completion"  # of the library, which answers where no program is named
SHOWN = 10  # errors on standard error; the file has all


@click.command("batch")
@click.argument("requests", type=FILE)
@click.argument("program", required=False)
@click.option(
    *("-o", "--output"),
    required=True,
    type=NEW_FILE,
    metavar="FILE",
    help="Where the answers go, a line each as they come.",
)
@repeatable(
    *("--set", "settings", "NAME=VALUE"),
    help="A field of all lines that do not have it; JSON, or else a text.",
)
@click.option(
    "--at-once",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Lines that are asked at the same time.",
)
@server_options
@model_option
def command(
    requests: Path,
    program: str | None,
    output: Path,
    settings: tuple[str, ...],
    at_once: int,
    at: At,
    model: str | None,
) -> None:
    """Answer each line of REQUESTS, a file of JSON objects.

    With PROGRAM, a Python source, a folder with main.py or the name of a library inferlet, the
    fields of a line are the arguments of its `main`, and what it returns is the answer. Without,
    lines are `{"prompt": ...}`, `{"messages": [...]}`, or requests of OpenAI's batches.

    A line that fails has an error in its place, and the others go on. Started again, it asks what
    FILE does not answer yet. Exit status: 1 if a line has failed.
    """
    if output.exists() and output.samefile(requests):
        raise click.BadParameter("is the file of the requests", param_hint="--output")
    main = _main(program or COMPLETION)
    known = dict(map(_setting, settings))
    with errors_shown(), Answers(output) as answers:
        batch = _Batch(answers, list(read_lines(requests)))
        status = 0
        try:
            if batch.lines:
                at, name = talking_server(at, model)
                if name and program is None:
                    known = {"model": name, **known}
                fields = [line.arguments(known, with_url=program is None) for line in batch.lines]
                inputs: list[Given] = [((), each) for each in fields]
                status = run_interruptible(
                    lambda interrupt: batch.run(interrupt, at, main, inputs, at_once)
                )
        finally:
            batch.tell(output)
    sys.exit(status or (EXIT_FAILED if batch.failed else 0))


def _main(program: str) -> Main:
    target = find_target(program)
    if target is None or target.kind != "python":
        raise BadTarget(f"{program} is no Python program: a batch runs the `main` of one")
    try:
        return Main(target.path, target.name)
    except BadProgram as error:
        raise BadTarget(str(error)) from None


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


class _Batch:
    """Lines that are asked, and how far they are."""

    def __init__(self, answers: Answers, lines: Sequence[Line]) -> None:
        waiting = [line for line in lines if not answers.has(line)]
        self.lines = [line for line in waiting if not line.wrong]
        self.failed = 0
        self._answers = answers
        self._done = len(lines) - len(waiting)
        self._before, self._total = self._done, len(lines)
        for line in waiting:
            if line.wrong:
                self._note(line, BadLine(line.wrong))

    async def run(
        self, interrupt: Interrupt, at: At, main: Main, inputs: Sequence[Given], at_once: int
    ) -> int:
        """Asks them, up to an interrupt; 0. Raises `ClientError`, or `OSError` of the answers."""

        def done(number: int, result: Any) -> None:
            if isinstance(result, ServerUnreachable | ConnectionLost):
                raise result
            self._note(self.lines[number], result)

        async with Client(at.endpoint, at.key) as client:
            # Within the client, which has to end the instances.
            with anyio.CancelScope() as interrupt.scope:
                await call_each(Sender(client, main), inputs, at_once, done, sys.stderr.isatty())
        return 0

    def tell(self, file: Path) -> None:
        """Says how far they are."""
        before = f", {self._before} of them before" if self._before else ""
        failed = f", {self.failed} failed" if self.failed else ""
        left = self._total - self._done - self.failed
        again = f"; {left} left: the same command goes on" if left else ""
        say(f"{file}: {self._done} of {self._total} answered{before}{failed}{again}")

    def _note(self, line: Line, result: Any) -> None:
        answer = line.answer(result)
        self._answers.add(answer)
        if answer.get("error") is None:
            self._done += 1
            return
        self.failed += 1
        if self.failed <= SHOWN:
            say(f"line {line.number}: {printable(answer['error']['message'], 300)}")
