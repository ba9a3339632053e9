"""Evaluates a model on held-out samples, unconstrained and greedy, and prints its figures.

python -m examples.pie_tiny.evaluate MODEL_FOLDER
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import torch
from tokenizers import Tokenizer
from torch.nn import Module
from transformers import LlamaForCausalLM

from examples.pie_tiny.call_episodes import Calls
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.decoding import decode
from examples.pie_tiny.episodes import Plain, Vocabulary
from examples.pie_tiny.held_out import CALL_SETS, PLAIN_SETS, episode
from examples.pie_tiny.scoring import Figure, calls_figures, plain_figures, points, problems

SPLITS = {"held-out names": Split(held_out=True), "training names": Split()}


def evaluate(
    model: LlamaForCausalLM, tokenizer: Tokenizer, split: Split, samples: int
) -> tuple[list[Figure], dict[str, dict[str, int]]]:
    """Plays all sets with a model.

    Args:
        model: on any device.
        tokenizer: its own.
        split: whose names the samples have.
        samples: of each set.

    Returns:
        The figures, and for each set of calls how often what went wrong first.
    """
    vocabulary = Vocabulary(tokenizer)
    played: dict[str, list[Plain]] = {
        name: [
            episode(vocabulary, sample, number)
            for number, sample in enumerate(test_set.draw(samples, split))
        ]
        for name, test_set in {**PLAIN_SETS, **CALL_SETS}.items()
    }
    decode(model, [one for episodes in played.values() for one in episodes])
    figures, wrong = [], {}
    for name in CALL_SETS:
        calls = [one for one in played[name] if isinstance(one, Calls)]
        figures += calls_figures(name, calls)
        wrong[name] = problems(calls)
    figures.append(_points(figures))
    figures += plain_figures({name: played[name] for name in PLAIN_SETS})
    return figures, wrong


def _points(figures: Sequence[Figure]) -> Figure:
    both = {figure.section: figure for figure in figures if figure.name == "all calls right"}
    return points(both["sequential"], both["asynchronous"])


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--samples", default=300, help="Of each kind.")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Writes it all here."
)
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu")
def main(folder: Path, samples: int, file: Path | None, device: str) -> None:
    """Prints how well the model in FOLDER does what the project expects of it."""
    started = time.monotonic()
    torch.set_num_threads(1)  # more help little
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    Module.to(model, torch.device(device))
    Module.eval(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    columns, wrong = {}, {}
    for name, split in SPLITS.items():
        columns[name], wrong[name] = evaluate(model, tokenizer, split, samples)
    for name, figures in columns.items():
        click.echo(f"{name}, greedy, unconstrained")
        for one in figures:
            value = "-" if one.value is None else f"{one.value:.1f}"
            click.echo(f"  {one.section:35} {one.name:40} {value:>6} of {one.count}")
        click.echo(f"  first problems: {json.dumps(wrong[name])}")
    seconds = time.monotonic() - started
    click.echo(f"{seconds:.0f} s")
    if file:
        whole = {
            "figures": {
                name: [asdict(figure) for figure in figures] for name, figures in columns.items()
            },
            "first problems": wrong,
            "seconds": round(seconds, 1),
        }
        file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
