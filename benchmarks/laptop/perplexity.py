"""Perplexity of the documentation: each side's, and what rounding costs the plain checkpoint."""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.benchmark import Progress
from benchmarks.laptop import texts
from benchmarks.laptop.sides import Side, our_side
from pie_control.models.tokenizer import TextCodec
from pie_inference.checkpoints.gguf_file import FILE, SUMS, gguf_folder, gguf_tensors
from pie_inference.checkpoints.loader import SINGLE_FILE
from pie_py.bench.report import Report
from pie_py.config.model import ModelConfig

WINDOW = 512  # tokens


def table(windows: int) -> Report:
    """Without rows."""
    title = f"Perplexity of the documentation, {windows} windows of {WINDOW} tokens"
    return Report(title, ["", "perplexity"])


def logprobs(side: Side, folder: Path, windows: int) -> list[float]:
    """A side's log-probabilities of the documentation; the folder has the tokenizer."""
    ids = TextCodec(folder).encode(texts.passage())[: windows * WINDOW]
    return side.score([ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)])


def score(side: Side, folder: Path, windows: int, report: Report) -> list[float]:
    """Adds a side's row; returns what it says."""
    found = logprobs(side, folder, windows)
    report.rows.append([side.name, f"{math.exp(-statistics.mean(found)):.3f}"])
    return found


def rounded(file: Path, windows: int, report: Report, progress: Progress) -> None:
    """Adds rows of the GGUF's weights as a plain checkpoint in bfloat16, and rounded."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        _widen(gguf_folder(file), folder)
        for config in (
            ModelConfig(source=name),
            ModelConfig(source=name, quantize="int8"),
            ModelConfig(source=name, quantize="int4"),
        ):
            title = (
                "plain, bfloat16" if config.quantize is None else f"--quantize {config.quantize}"
            )
            with our_side(title, config, 1, WINDOW + 1) as side:
                score(side, folder, windows, report)
            progress(f"perplexity, {title}")


def _widen(made: Path, folder: Path) -> None:
    """Writes the checkpoint of a GGUF in bfloat16, given the folder made of it."""
    for each in made.iterdir():
        if each.name not in (FILE, SUMS):
            (folder / each.name).write_bytes(each.read_bytes())
    sources = gguf_tensors(made / FILE, torch.bfloat16).items()
    save_file({name: source.read().contiguous() for name, source in sources}, folder / SINGLE_FILE)
