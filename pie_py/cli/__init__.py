"""The command line. A command is a module of this package with a click command named `command`, or
an entry point of a package that extends pie_py.
"""

from __future__ import annotations

import importlib
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli.connect import EXIT_INTERRUPTED
from pie_py.cli.examples import with_example

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

# Modules are imported when their command is used: starting fast matters more than finding typos
# early.
COMMANDS = {
    "run": "pie_py.cli.run",
    "serve": "pie_py.cli.serve",
    "new": "pie_py.cli.new",
    "test": "pie_py.cli.test",
    "build": "pie_py.cli.build",
    "upload": "pie_py.cli.upload",
    "launch": "pie_py.cli.launch",
    "ps": "pie_py.cli.ps",
    "attach": "pie_py.cli.attach",
    "logs": "pie_py.cli.logs",
    "kill": "pie_py.cli.kill",
    "trace": "pie_py.cli.trace",
    "replay": "pie_py.cli.replay",
    "top": "pie_py.cli.top",
    "models": "pie_py.cli.models",
    "adapters": "pie_py.cli.adapters",
    "mcp": "pie_py.cli.mcp",
    "quota": "pie_py.cli.quota",
    "programs": "pie_py.cli.programs",
    "inferlets": "pie_py.cli.inferlets",
    "keys": "pie_py.cli.keys",
    "doctor": "pie_py.cli.doctor",
    "completion": "pie_py.cli.completion",
    "version": "pie_py.cli.version",
    "bench": "pie_py.bench.command",
}
GROUP = "pie_py.commands"  # of entry points
PACKAGES = {"cluster": "pie-py[cluster]"}  # that have commands of this group


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        own = [name for name, module in COMMANDS.items() if _is_installed(module)]
        return [*own, *(entry.name for entry in _entries())]

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:  # of commands that have no more to say of it
            sys.exit(EXIT_INTERRUPTED)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        if module is None:
            return _extension(name)
        if not _is_installed(module):
            raise click.UsageError(f"`{name}` comes with the server: pip install pie-py")
        return with_example(importlib.import_module(module).command, name)


def _entries() -> EntryPoints:
    from importlib.metadata import entry_points  # slow, and seldom needed

    return entry_points(group=GROUP)


def _extension(name: str) -> click.Command | None:
    for entry in _entries().select(name=name):
        command: click.Command = entry.load()
        return command
    if name in PACKAGES:
        raise click.UsageError(f"`{name}` needs: pip install '{PACKAGES[name]}'")
    return None


def _is_installed(module: str) -> bool:
    """Whether this installation has a command: that of the client alone has some."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor the package around it
        return False


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from pie_py.cli.version import version_text

        click.echo(version_text())
        context.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the versions of pie_py and of its contract.",
)
def main() -> None:
    """Serves programs, not prompts: inferlets run beside the model and drive inference themselves.

    Answers go to standard output, everything else to standard error. Exit status: 0, or 1 if an
    inferlet or the command failed, or 2 for wrong usage.
    """


def run() -> None:
    """What the shell starts: the command line, with which its process ends.

    From its end on, Ctrl-C ends the process at once: Python would tell of it with a traceback while
    the interpreter is shut down.
    """
    try:
        main()
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a shell's background jobs
            signal.signal(signal.SIGINT, signal.SIG_DFL)
