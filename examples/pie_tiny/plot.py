"""Draws the losses of runs: `python -m examples.pie_tiny.plot RUN... --output losses.png`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

SMOOTHED = 10
"""Entries of the log averaged into a point."""


def read_log(run: Path) -> tuple[list[float], list[float]]:
    """Millions of tokens and the loss there, smoothed; entries that a resumed run repeats count
    once.
    """
    entries: dict[int, tuple[float, float]] = {}
    for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        entries[entry["step"]] = (entry["tokens"] / 1e6, entry["loss"])
    points = [entries[step] for step in sorted(entries)]
    tokens, losses = [], []
    for at in range(0, len(points), SMOOTHED):
        part = points[at : at + SMOOTHED]
        tokens.append(part[-1][0])
        losses.append(sum(loss for _, loss in part) / len(part))
    return tokens, losses


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), default=Path("losses.png"))
def main(runs: tuple[Path, ...], output: Path) -> None:
    """Draws the training losses of RUNS into one picture."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for run in runs:
        axes.plot(*read_log(run), label=run.name)
    axes.set_xlabel("tokens trained on, millions")
    axes.set_ylabel("loss of what the model has to write, nats a token")
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.tight_layout()
    figure.savefig(output, dpi=120)
    click.echo(output)


if __name__ == "__main__":
    main()
