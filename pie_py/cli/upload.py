"""`pie-py upload`: gives the server a program."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pie_py.cli.connect import EXIT_FAILED, with_client
from pie_py.cli.console import say
from pie_py.cli.target import BadTarget, find_target, program_bytes, target_bytes
from pie_py.client import sync


@click.command("upload")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--name", help="What to call it; the file's name without its ending by default.")
@with_client
def command(client: sync.Client, file: Path, name: str | None) -> None:
    """Upload FILE, and print its content hash: a component, a source, or a folder as of `run`.

    A Rust crate is built first. The modules beside a source that it imports are part of the
    program.

    The server keeps the name for `pie-py launch`. Bytes that it has are not sent again.
    """
    from pie_py.build.errors import BuildError

    try:
        target = find_target(str(file)) if file.is_dir() else None
        program = program_bytes(file) if target is None else target_bytes(target)
    except BadTarget as error:
        raise click.BadParameter(str(error), param_hint="FILE") from None
    except BuildError as error:
        say(f"error: {error}")
        sys.exit(EXIT_FAILED)
    click.echo(client.upload(program, name or (target.name if target else file.absolute().stem)))
