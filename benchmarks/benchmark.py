"""A benchmark as a value, and the one command line that runs any of them."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from benchmarks.options import click_options
from pie_py import __version__
from pie_py.bench.report import Report
from pie_py.build import BuildError
from pie_py.client.errors import ClientError
from pie_py.config.child import first_error
from pie_py.config.server_process import ServerFailed

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What a user can mend; everything else is a fault of the benchmark and keeps its traceback.
EXPECTED = (BuildError, ServerFailed, ClientError, RuntimeError)


class Progress:
    """The bar on standard error. A benchmark says how many steps it has, then calls it at each."""

    def __init__(self, bars: Bars, console: Console) -> None:
        self._bars = bars
        self._console = console
        self._task = bars.add_task("starting", total=None)

    def expect(self, steps: int) -> None:
        """Says how many steps there will be."""
        self._bars.update(self._task, total=steps)

    def __call__(self, text: str) -> None:
        """Says which step has just been done."""
        self._bars.update(self._task, advance=1, description=text)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as its module offers it, as `BENCHMARK`.

    Attributes:
        settings: a dataclass of options (`benchmarks.options`); its docstring is the help text.
        run: measures; takes the settings and a `Progress`, gives a report or several.
        always_checks: a goal that is missed is a failure, without `--check`.
    """

    settings: type[Any]
    run: Callable[[Any, Progress], Report | Sequence[Report]]
    always_checks: bool = False

    def command(self, name: str) -> click.Command:
        """The click command: the options of the settings, `--json`, and `--check`."""
        as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, not a table.")
        check = click.Option(
            ["--check"], is_flag=True, help="Exit with status 1 if a goal is missed."
        )
        options = [*click_options(self.settings), as_json, check]
        text = inspect.getdoc(self.settings)
        return click.Command(name, callback=self._invoke, params=options, help=text)

    def _invoke(self, as_json: bool, check: bool, **values: Any) -> None:
        before = os.getloadavg()[0]
        with _progress() as progress:
            found = self.run(self.settings(**values), progress)
        reports = [found] if isinstance(found, Report) else found
        if as_json:
            several = {"reports": [report.to_json() for report in reports]}
            document = found.to_json() if isinstance(found, Report) else several
            print(json.dumps({**document, "environment": environment()}))
        else:
            for report in reports:
                report.show()
            print(
                f"Load average: {before:.1f} before, {os.getloadavg()[0]:.1f} at the end;"
                f" {os.cpu_count()} cores."
            )
        check = check or self.always_checks
        if check and not all(goal.met for report in reports for goal in report.goals):
            raise click.exceptions.Exit(1)


class Benchmarks(click.Group):
    """Benchmarks by name. A module is imported when its benchmark is asked for."""

    def __init__(self, modules: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._modules = modules

    def list_commands(self, context: click.Context) -> list[str]:
        """All names, in the order of the table."""
        return list(self._modules)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of this name."""
        module = self._modules.get(name)
        if module is None:
            return None
        benchmark: Benchmark = importlib.import_module(module).BENCHMARK
        command = benchmark.command(name)
        command.epilog = f"\b\nExample:\n  {context.command_path} {name} --json"
        return command


@contextmanager
def _progress() -> Iterator[Progress]:
    """Shows progress; errors that a user can mend become a line on standard error.

    Within it signals end this process as an exception does, so that no server or peer stays behind;
    Ctrl-C's, too, where a shell has started this in the background and so had it ignored.
    """
    for number in ENDING:
        signal.signal(number, _end)
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bars(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        try:
            yield Progress(bars, console)
        except Exception as error:
            reason = first_error(error)
            if isinstance(reason, EXPECTED):
                raise click.ClickException(str(reason)) from None
            raise


def _end(number: int, frame: FrameType | None) -> None:
    """Ends this process, once: further signals must not cut short how servers and peers end."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def environment() -> dict[str, Any]:
    """The machine and the versions that figures hold for."""
    packages = {}
    for name in ("torch", "wasmtime", "trio", "pyzmq", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "?"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],  # of other programs, too: figures of a busy machine say little
        "python": platform.python_version(),
        "system": platform.platform(),
        "pie_py": __version__,
        "packages": packages,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
