"""Tells how much of held-out samples a model would write as they stand, and prints it.

python -m examples.pie_tiny.evaluate MODEL_FOLDER
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import click
import torch
from tokenizers import Tokenizer
from torch.nn import Module
from transformers import LlamaForCausalLM

from examples.pie_tiny.corpus.mixture import GENERATORS
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.tokenizer import IGNORED, encode

SEED = "pie-tiny-test"


@torch.inference_mode()
def right_tokens(
    model: LlamaForCausalLM, tokenizer: Tokenizer, kind: str, samples: int
) -> list[list[bool]]:
    """Of each held-out sample, which of the tokens that the model has to write are its likeliest,
    after what stands before them. All of them are where greedy decoding writes the sample.
    """
    drawn = [GENERATORS[kind](Random(f"{SEED}:{kind}:{n}"), Split(True)) for n in range(samples)]
    found = []
    for ids, targets in encode(tokenizer, drawn):
        chosen = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].argmax(-1)
        pairs = zip(chosen.tolist(), targets[1:], strict=False)
        found.append([token == target for token, target in pairs if target != IGNORED])
    return found


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--samples", default=300, help="Of each kind.")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Writes it all here."
)
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu")
def main(folder: Path, samples: int, file: Path | None, device: str) -> None:
    """Prints in percent, for each kind, tokens that are right, and samples that are as a whole."""
    torch.set_num_threads(1)  # more help little
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    Module.to(model, torch.device(device))
    Module.eval(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    figures = {}
    for kind in GENERATORS:
        right = right_tokens(model, tokenizer, kind, samples)
        tokens = 100 * sum(map(sum, right)) / sum(map(len, right))
        whole = 100 * sum(map(all, right)) / samples
        figures[kind] = {"tokens": round(tokens, 1), "whole": round(whole, 1)}
        click.echo(f"{kind:15} tokens {tokens:5.1f} whole {whole:5.1f}")
    if file:
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
