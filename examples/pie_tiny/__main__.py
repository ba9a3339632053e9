"""Makes the embedded models from nothing: trains both, and evaluates them.

    python -m examples.pie_tiny RUN_FOLDER

Stop it whenever you like; the same command goes on.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from examples.pie_tiny.evaluate import main as evaluate
from examples.pie_tiny.model import SIZES
from examples.pie_tiny.train import train


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", default=130_000_000, help="How many to train on, each of the two.")
@click.option("--save-seconds", default=120.0, help="Between two checkpoints.")
@click.option("--compile/--no-compile", "compiled", default=True, help="Needs a C++ compiler.")
@click.pass_context
def main(
    context: click.Context, folder: Path, tokens: int, save_seconds: float, compiled: bool
) -> None:
    """Trains and evaluates in FOLDER; the checkpoints are in FOLDER/NAME/model."""
    for name in SIZES:
        run = folder / name
        train(name, run, tokens, compiled=compiled, save_seconds=save_seconds)
        for number in (signal.SIGINT, signal.SIGTERM):  # training saves first; an evaluation ends
            signal.signal(number, signal.SIG_DFL)
        context.invoke(evaluate, folder=run / "model", file=run / "evaluation.json")


if __name__ == "__main__":
    main()
