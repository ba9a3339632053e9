"""`pie-py ask`: one question, answered by the library's program `ask`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from pie_py.cli.arguments import TextCommand, utf8, with_files
from pie_py.cli.connect import FILE, At, errors_shown, server_options
from pie_py.cli.reached import talking_server
from pie_py.cli.run import built, run_program
from pie_py.cli.stream import MOST_LINE
from pie_py.cli.target import find_target

model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="A served model, by any name that is clear; else one as of `pie-py pull`. The running"
    " server's first one by default, or smollm2.",
)


@click.command("ask", cls=TextCommand)
@click.argument("question", nargs=-1, type=click.UNPROCESSED)
@server_options
@model_option
@click.option("--system", metavar="TEXT", help="What the model is told before the question.")
@click.option("--json-schema", type=FILE, metavar="FILE", help="Answer in JSON that fits it.")
@click.option("--image", "images", type=FILE, multiple=True, metavar="FILE", help="Repeatable.")
@click.option("-n", type=click.IntRange(1), metavar="N", help="Several answers, made at once.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Most of an answer.")
@click.option("--temperature", type=click.FloatRange(0, 10_000), metavar="T", help="0 is greedy.")
@click.option("--seed", type=int, metavar="N", help="Makes the answer repeatable.")
@click.option("--json", "facts", is_flag=True, help="Print JSON, for machines.")
def command(
    question: tuple[str, ...],
    at: At,
    model: str | None,
    json_schema: Path | None,
    images: tuple[Path, ...],
    facts: bool,
    **options: str | float | None,
) -> None:
    """Ask QUESTION and print the answer; a text that is piped in stands before it.

    `pie-py inferlets copy ask` copies the program that answers, `pie-py run ask --help` tells its
    options.
    """
    piped = b"" if sys.stdin.isatty() else sys.stdin.buffer.read(MOST_LINE + 1)
    if len(piped) > MOST_LINE:
        raise click.UsageError(f"more than {MOST_LINE >> 20} MiB are piped in")
    parts = (utf8(piped, "what is piped in").strip(), " ".join(with_files(question)))
    text = "\n\n".join(part for part in parts if part)
    if not text:
        raise click.UsageError('nothing is asked: pie-py ask "Why is the sky blue?"')
    schema = json_schema and _schema(json_schema)
    found = find_target("ask")
    assert found is not None
    with errors_shown():
        at, name = talking_server(at, model)
        given = {**options, "model": name or None, "json_schema": schema, "images": len(images)}
        args = ["--question", text, *(["--facts"] if facts else [])]
        for option, value in given.items():
            args += [] if value is None else [f"--{option.replace('_', '-')}", str(value)]
        blobs = [image.read_bytes() for image in images]
        status = run_program(at, "ask", built(found), args, blobs=blobs)
    sys.exit(status)


def _schema(file: Path) -> str:
    text = utf8(file.read_bytes(), str(file))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--json-schema {file} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"--json-schema {file} is no JSON object, as a schema is")
    return text
