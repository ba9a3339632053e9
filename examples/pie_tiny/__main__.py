"""Makes the embedded models from nothing: trains both, evaluates them, draws their losses.

    python -m examples.pie_tiny RUN_FOLDER

Stop it whenever you like; the same command goes on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from examples.pie_tiny.model import SIZES


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", default=130_000_000, help="How many to train on, each of the two.")
def main(folder: Path, tokens: int) -> None:
    """Trains, evaluates and plots in FOLDER; the checkpoints are in FOLDER/NAME/model."""
    runs = [folder / name for name in SIZES]
    for name, run in zip(SIZES, runs, strict=True):
        _run("train", "--model", name, "--run", run, "--tokens", tokens)
        _run("evaluate", run / "model", "--json", run / "evaluation.json")
    _run("plot", *runs, "--output", folder / "losses.png")


def _run(module: str, *arguments: object) -> None:
    """Runs a script of this folder; each one in a process of its own, as if called by hand."""
    command = [sys.executable, "-m", f"examples.pie_tiny.{module}", *map(str, arguments)]
    if status := subprocess.run(command).returncode:
        raise SystemExit(status)


if __name__ == "__main__":
    main()
