"""`pie-py test`: runs a project's tests."""

from __future__ import annotations

import importlib.util
import sys

import click

from pie_py.cli.arguments import PassingCommand
from pie_py.cli.connect import EXIT_FAILED
from pie_py.cli.console import run_to_end, say
from pie_py.config.python_child import python_command


@click.command("test", cls=PassingCommand)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Run the tests of this folder with pytest; ARGS are pytest's.

    Tests take the fixture `pie`, a server whose model says what the test tells it, or `pie_tiny`,
    with the embedded model.
    """
    if importlib.util.find_spec("pytest") is None:
        say(f"error: pytest is not installed: {sys.executable} -m pip install pytest")
        sys.exit(EXIT_FAILED)
    sys.exit(run_to_end(python_command("-m", "pytest", *args)))
