"""`pie-py batch`: a program for each line of a file, and the files of lines that ask and answer."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import click

from pie_py.cli.ask import model_option
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
from pie_py.client.errors import ClientError, RpcError
from pie_py.client.remote.call import Sender
from pie_py.client.remote.program import Main
from pie_py.client.remote.several import Given, call_each
from pie_py.config.printable import printable
from pie_py.config.whole_files import write_whole
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


class BadLine(ClientError):
    """A line that cannot be asked."""


@dataclass(frozen=True)
class Line:
    """A line that asks."""

    number: int  # counted from 1
    text: bytes  # of it
    facts: dict[str, Any]  # the object that it is; empty of one that is none
    wrong: str = ""  # why it cannot be asked; empty if it can

    @property
    def is_openai(self) -> bool:
        """True if it is one of OpenAI's batches."""
        return isinstance(self.facts.get("body"), dict) and "url" in self.facts

    @property
    def head(self) -> dict[str, Any]:
        """The facts by which its answer tells what it answers."""
        named = {name: self.facts[name] for name in ("custom_id",) if name in self.facts}
        if self.is_openai:
            return {"id": f"batch_req_{self.number}", **named}
        return {"line": self.number, "of": hashlib.sha256(self.text).hexdigest()[:16], **named}

    def arguments(self, known: dict[str, Any], *, with_url: bool) -> dict[str, Any]:
        """The fields that the program gets: the line's over those that are `known` of all."""
        if self.is_openai:
            url = {"url": self.facts["url"]} if with_url else {}
            return {**known, **self.facts["body"], **url}
        return {**known, **{name: v for name, v in self.facts.items() if name != "custom_id"}}

    def answer(self, result: Any) -> dict[str, Any]:
        """The line that answers, with a result or an exception."""
        if isinstance(result, Exception):
            code = result.code if isinstance(result, RpcError) else "failed"
            text = (
                str(result)
                if isinstance(result, ClientError)
                else f"{type(result).__name__}: {result}"
            )
            error = {"code": code, "message": text}
            return {**self.head, **({"response": None} if self.is_openai else {}), "error": error}
        if not self.is_openai:
            return {**self.head, "result": result}
        name = self.head["id"]
        response = {"status_code": 200, "request_id": name, "body": result}
        return {**self.head, "response": response, "error": None}


def _key(head: dict[str, Any]) -> tuple[Any, ...]:
    """The key that an answer and its line have in common."""
    return (str(head["custom_id"]),) if "id" in head else (head["line"], head["of"])


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that ask."""
    names = set[str]()
    for number, text in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield Line(number, text, {}, f"no JSON: {error}")
            continue
        if not isinstance(facts, dict):
            yield Line(number, text, {}, "no JSON object")
            continue
        line = Line(number, text, facts)
        name = str(facts.get("custom_id", ""))
        if line.is_openai and not name:
            yield Line(number, text, {}, "a request of OpenAI's batches has a `custom_id`")
        elif name in names and name:
            yield Line(number, text, {}, f"another line has the custom_id {name[:100]!r}")
        else:
            names.add(name)
            yield line


class Answers:
    """The file of the lines that answer. What is answered stays; the rest is asked again."""

    def __init__(self, path: Path) -> None:
        """Takes where it is, or will be."""
        self._path = path
        self._answered = set[tuple[Any, ...]]()

    def __enter__(self) -> Answers:
        """Reads what is there, and takes out what is no answer: errors, and a line that a crash has
        cut short. Raises `click.UsageError`: it is another file than of answers.
        """
        before = self._path.read_bytes() if self._path.is_file() else b""
        kept = list[bytes]()
        *whole, _ = before.split(b"\n")
        for number, text in enumerate(whole, 1):
            found = self._read(text, number)
            if found.get("error") is None:
                self._answered.add(_key(found))
                kept.append(text + b"\n")
        if len(data := b"".join(kept)) < len(before):
            write_whole(self._path, data, self._path.stat().st_mode & 0o777)
        self._file = self._path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self._file.close()

    def _read(self, text: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(text)
            _key(found)
            if "result" in found or "error" in found:
                answer: dict[str, Any] = found
                return answer
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise click.UsageError(
            f"line {number} of {self._path} is no answer of a batch: give another file for them"
        )

    def has(self, line: Line) -> bool:
        """True if a line is answered."""
        return not line.wrong and _key(line.head) in self._answered

    def add(self, answer: dict[str, Any]) -> None:
        """Writes an answer, at once."""
        text = json.dumps(answer, ensure_ascii=False)
        self._file.write(text.encode(errors="backslashreplace") + b"\n")
        self._file.flush()
