"""`pie-py upload`: gives the server a program."""

from __future__ import annotations

from pathlib import Path

import click

from pie_py.cli.connect import with_client
from pie_py.cli.target import BadTarget, program_bytes
from pie_py.client import sync


@click.command("upload")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--name", help="What to call it; the file's name without its ending by default.")
@with_client
def command(client: sync.Client, file: Path, name: str | None) -> None:
    """Upload FILE, a component or a source, or a folder with main.py, main.js or main.ts; print its
    content hash.

    The modules beside a source that it imports are part of the program.

    The server keeps the name for `pie-py launch`. Bytes that it has are not sent again.
    """
    try:
        program = program_bytes(file)
    except BadTarget as error:
        raise click.BadParameter(str(error), param_hint="FILE") from None
    click.echo(client.upload(program, name or file.absolute().stem))
