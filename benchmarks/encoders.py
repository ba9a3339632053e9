"""`encoders`: an encoder's vectors beside sentence-transformers', in turns, on this machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from string import ascii_lowercase
from typing import Any

import click
import numpy as np
import torch

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from pie_control.models.tokenizer import TextCodec
from pie_inference.handlers.base import ServedEncoder
from pie_inference.handlers.encode import encode
from pie_inference.loading.assembly import load_served
from pie_inference.serving.engine import threads_of
from pie_py.bench.report import Goal, Report
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import Encode

LENGTHS = ((4, 12), (10, 40), (40, 200))  # words of a text, a letter each
Vectors = Callable[[list[str]], Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Texts of several lengths, tokenizing included."""

    model: ModelConfig = options.model("minilm")
    texts: int = options.count("--texts", 200, "Texts of each length.")
    rounds: int = options.rounds(5)


def encoders(settings: Settings, progress: Progress) -> Report:
    """Measures both sides on the same texts, one after the other."""
    [served] = load_served([settings.model])
    if not isinstance(served, ServedEncoder):
        raise click.UsageError(f"{settings.model.source} is no encoder")
    ours, theirs = _ours(served), _theirs(Path(served.description.folder))
    columns = ["words of a text", "ours, texts/s", "sentence-transformers", "ratio", "apart"]
    report = Report(f"{settings.texts} texts, {torch.get_num_threads()} threads", columns)
    progress.expect(len(LENGTHS) * settings.rounds)
    chosen = random.Random(0)
    for least, most in LENGTHS:
        texts = [
            " ".join(chosen.choices(ascii_lowercase, k=chosen.randint(least, most)))
            for _ in range(settings.texts)
        ]
        apart = float(abs(ours(texts) - theirs(texts)).max())
        times = []
        for _ in range(settings.rounds):
            times.append([_seconds(side, texts) for side in (ours, theirs)])
            progress(f"{least} to {most} words")
        one, other = (settings.texts / median(each) for each in zip(*times, strict=True))
        ratio = median(theirs / ours for ours, theirs in times)
        report.rows.append([f"{least} to {most}", one, other, ratio, apart])
        report.goals.append(Goal(f"ratio, {least} to {most} words", ratio, 1.5, at_most=False))
        report.goals.append(Goal(f"apart, {least} to {most} words", apart, 1e-4))
    return report


def _ours(served: ServedEncoder) -> Vectors:
    """As the server does: tokenized, sorted by length, in batches of tokens."""
    codec, threads = TextCodec(Path(served.description.folder)), threads_of(served, False)
    most = served.description.max_batch_tokens

    def vectors(texts: list[str]) -> Any:
        whole = codec.encode_whole(texts, served.description.max_position)
        rows: list[Any] = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda at: len(whole[at][0]))
        while order:
            batch: list[int] = []
            tokens = 0
            while order and (not batch or tokens + len(whole[order[0]][0]) <= most):
                tokens += len(whole[order[0]][0])
                batch.append(order.pop(0))
            starts = np.cumsum([0, *(len(whole[at][0]) for at in batch)], dtype=np.int32)
            joined = np.concatenate([whole[at][0] for at in batch])
            none, zeros = np.full(len(batch), -1, np.int32), np.zeros(len(batch), np.int32)
            threads.use(tokens, 0)
            with torch.inference_mode():
                found = encode(served, Encode(starts, joined, none, zeros)).get().hidden
            assert found is not None
            for at, row in zip(batch, found.means, strict=True):
                rows[at] = row
        return np.stack(rows)

    return vectors


def _theirs(folder: Path) -> Vectors:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise click.UsageError(f"{error}: pip install sentence-transformers") from None
    model, most = SentenceTransformer(str(folder), device="cpu"), torch.get_num_threads()

    def vectors(texts: list[str]) -> Any:
        torch.set_num_threads(most)
        return model.encode(texts)

    return vectors


def _seconds(side: Vectors, texts: list[str]) -> float:
    start = time.perf_counter()
    side(texts)
    return time.perf_counter() - start


BENCHMARK = Benchmark(Settings, encoders)
