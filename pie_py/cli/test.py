"""`pie-py test`: runs a project's tests."""

from __future__ import annotations

import sys

import click

from pie_py.cli.arguments import PassingCommand
from pie_py.cli.console import run_to_end
from pie_py.config.processes import python_command


@click.command("test", cls=PassingCommand)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Run the tests of this folder with pytest; ARGS are pytest's.

    Tests take the fixture `pie`, a server whose model says what the test tells it, or `pie_tiny`,
    with the embedded model.
    """
    sys.exit(run_to_end(python_command("-m", "pytest", *args)))
