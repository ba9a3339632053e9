"""The command line: click commands that `COMMANDS` names, and entry points of other packages."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pie_py import __version__
from pie_py.cli.arguments import SuggestingGroup
from pie_py.cli.connect import EXIT_INTERRUPTED
from pie_py.cli.examples import with_example
from pie_py.config.printable import printable
from pie_py.config.shipped_files import contract_version

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

# Modules are imported when their command is used: starting fast matters more than finding typos
# early.
COMMANDS = {
    "chat": "pie_py.cli.chat:command",
    "ask": "pie_py.cli.ask:command",
    "run": "pie_py.cli.run:command",
    "batch": "pie_py.cli.batch:command",
    "serve": "pie_py.cli.serve:command",
    "status": "pie_py.cli.kept_servers:status",
    "stop": "pie_py.cli.kept_servers:stop",
    "new": "pie_py.cli.projects:new",
    "test": "pie_py.cli.projects:test",
    "build": "pie_py.cli.build:command",
    "upload": "pie_py.cli.programs:upload",
    "launch": "pie_py.cli.instances:launch",
    "ps": "pie_py.cli.instances:ps",
    "attach": "pie_py.cli.instances:attach",
    "send": "pie_py.cli.instances:send",
    "logs": "pie_py.cli.instances:logs",
    "kill": "pie_py.cli.instances:kill",
    "resume": "pie_py.cli.durable:resume",
    "branch": "pie_py.cli.durable:branch",
    "calls": "pie_py.cli.durable:calls",
    "top": "pie_py.cli.top:command",
    "pull": "pie_py.cli.pull:command",
    "rm": "pie_py.cli.pull:rm",
    "models": "pie_py.cli.models:models",
    "adapters": "pie_py.cli.models:adapters",
    "mcp": "pie_py.cli.mcp:command",
    "quota": "pie_py.cli.users:quota",
    "usage": "pie_py.cli.users:usage",
    "programs": "pie_py.cli.programs:programs",
    "inferlets": "pie_py.cli.projects:inferlets",
    "keys": "pie_py.cli.users:keys",
    "backup": "pie_py.cli.backup:backup",
    "restore": "pie_py.cli.backup:restore",
    "check-config": "pie_py.cli.serve:check_config",
    "doctor": "pie_py.cli.doctor:command",
    "version": "pie_py.cli:version",
    "bench": "pie_py.bench.command:command",
}
GROUP = "pie_py.commands"  # of entry points
PACKAGES = {"cluster": "pie-py[cluster]"}  # that have commands of this group


class _Commands(SuggestingGroup):
    def list_commands(self, context: click.Context) -> list[str]:
        own = [name for name, where in COMMANDS.items() if _is_installed(where)]
        return [*own, *(entry.name for entry in _entries())]

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:
            raise
        except OSError as error:  # of --help and --version, which are printed here
            raise click.ClickException(_of_files(error)) from None

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:  # of commands that have no more to say of it
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # click ends quietly
            raise
        except OSError as error:  # of files and folders: those of servers are the client's errors
            raise click.ClickException(_of_files(error)) from None

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        where = COMMANDS.get(name)
        if where is None:
            for entry in _entries().select(name=name):
                command: click.Command = entry.load()
                return command
            if name in PACKAGES:
                raise click.UsageError(f"`{name}` needs: pip install '{PACKAGES[name]}'")
            return None
        if not _is_installed(where):
            raise click.UsageError(f"`{name}` comes with the server: pip install pie-py")
        module, _, attribute = where.partition(":")
        return with_example(getattr(importlib.import_module(module), attribute), name)


def _of_files(error: OSError) -> str:
    """The fault of a file; where none is named, one that was open, perhaps standard output."""
    full = error.errno == errno.ENOSPC
    name = (full and error.filename2) or error.filename  # of a copy, the end is on the full disk
    if name is None and full and (os.isatty(1) or stat.S_ISFIFO(os.fstat(1).st_mode)):
        name = "a file"  # neither a terminal nor a pipe is ever full
    elif name is None and error.errno in (errno.EBADF, errno.ENOSPC, errno.EIO):
        name = "standard output"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains when it flushes at exit
    text = printable(error if name is None else f"{name} cannot be used: {error.strerror}", None)
    if name is None or Path.home() not in Path(os.fsdecode(name)).parents:
        return text
    return f"{text}; mend that, or set HOME, or XDG_CACHE_HOME, to a folder that can be written"


def _entries() -> EntryPoints:
    from importlib.metadata import entry_points  # slow, and seldom needed

    return entry_points(group=GROUP)


def _is_installed(where: str) -> bool:
    """True if this installation has a command: that of the client alone has some."""
    try:
        return find_spec(where.partition(":")[0]) is not None
    except ModuleNotFoundError:  # nor the package around it
        return False


def version_text() -> str:
    """The versions that decide what works with what."""
    return f"pie-py {__version__}, contract pie:inferlet {contract_version()}"


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
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


@click.command("version")
def version() -> None:
    """Print the versions of pie_py and of its contract."""
    click.echo(version_text())


def _open_standard_files() -> None:
    """Opens those that the shell has closed (`>&-`), so that nothing else gets their numbers. What
    would go to standard output is then an error, as none can be written that is open to read.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def run() -> None:
    """The entry point of the shell: the command line, with which its process ends.

    From its end on, Ctrl-C ends the process at once: Python would tell of it with a traceback while
    the interpreter is shut down.
    """
    _open_standard_files()
    try:
        main()
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a shell's background jobs
            signal.signal(signal.SIGINT, signal.SIG_DFL)
