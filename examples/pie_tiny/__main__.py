"""Makes the embedded models from nothing: trains both, and evaluates them.

    python -m examples.pie_tiny RUN_FOLDER

Stop it whenever you like; the same command goes on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import click

from examples.pie_tiny.sizes import SIZES


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", default=130_000_000, help="How many to train on, each of the two.")
@click.option("--compile/--no-compile", "compiled", default=True, help="Needs a C++ compiler.")
def main(folder: Path, tokens: int, compiled: bool) -> None:
    """Trains and evaluates in FOLDER; the checkpoints are in FOLDER/NAME/model."""
    scripts = Scripts()
    how = "--compile" if compiled else "--no-compile"
    for name in SIZES:
        run = folder / name
        scripts.run("train", "--model", name, "--run", run, "--tokens", tokens, how)
        scripts.run("evaluate", run / "model", "--json", run / "evaluation.json")


class Scripts:
    """Runs scripts of this folder, each in a process of its own, as if called by hand.

    SIGINT and SIGTERM are passed on to the one under way, so that it saves what it has and does not
    go on unseen; no other is begun after them.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._script: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def run(self, module: str, *arguments: object) -> None:
        """Runs one to its end.

        Raises:
            SystemExit: it failed, or a stop was asked for.
        """
        command = [sys.executable, "-m", f"examples.pie_tiny.{module}", *map(str, arguments)]
        self._script = subprocess.Popen(command)
        if self._stopped:
            self._script.terminate()
        if status := self._script.wait():
            raise SystemExit(1 if self._stopped else status)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if self._script:
            self._script.terminate()


if __name__ == "__main__":
    main()
