"""`ways`: families that code of ours serves, beside transformers' own code, in turns.

Of each a random model of four layers, in bfloat16 or rounded, in this process: a prompt of 256
tokens, and steps of one and of eight sequences behind as many.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import families, options
from benchmarks.benchmark import Benchmark, Progress
from pie_inference.loading.assembly import load_models
from pie_inference.models.registry import ARCHITECTURES
from pie_py.bench.report import Goal, Report
from pie_py.config.model import ModelConfig

GOAL = 1.2  # times as fast by ours, a step: else ours may go
CONTEXT, PAGES = 256, 40  # tokens, and pages of each sequence
# Sequences, tokens of each; how often it is run first, while copies of keys are made, and in turns.
CASES = {"prompt": (1, CONTEXT, 2, 6), "one": (1, 1, 12, 16), "eight": (8, 1, 12, 16)}
SIZES = {
    **families.SIZES,
    **dict.fromkeys(("hidden_size", "moe_intermediate_size"), 512),
    "shared_expert_intermediate_size": 512,
    "intermediate_size": 1536,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("num_attention_heads", "linear_num_value_heads"), 8),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads"), 4),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim"), 64),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 64),
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "sliding_window": 128,
    "initializer_range": 0.02,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Families of ours beside transformers' own code."""

    only: str = options.option("--only", default="", help="Architectures that contain this.")
    int8: bool = options.option("--int8", is_flag=True, default=False, help="Rounded to 8 bits.")


@contextmanager
def by_transformers(name: str) -> Iterator[None]:
    """An architecture of ours is none meanwhile."""
    ours = ARCHITECTURES.pop(name)
    try:
        yield
    finally:
        ARCHITECTURES[name] = ours


def _loaded(folder: str, *, int8: bool) -> Any:
    config = {"source": folder, "page_size": families.PAGE, "kv_pages": 8 * PAGES, "embeds": 4096}
    config |= {"dtype": "bfloat16", "quantize": "int8" if int8 else None}
    return load_models([ModelConfig.model_validate(config)])[0]


def _seconds(model: Any, rows: int, count: int) -> float:
    first = 0 if count > 1 else CONTEXT
    texts = [[7 + (13 * i + row) % 4000 for i in range(first + count)] for row in range(rows)]
    own = [np.arange(row * PAGES, (row + 1) * PAGES) for row in range(rows)]
    parts = [(first, first + count)] * rows
    embeds = families.embedded(model, texts, parts)
    began = time.perf_counter()
    list(families.forward(model, embeds, own, parts))
    return time.perf_counter() - began


def ways(settings: Settings, progress: Progress) -> Report:
    """Measures each family whose configuration is one of text."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    names = [n for n in ARCHITECTURES if n.endswith("ForCausalLM") and settings.only in n]
    progress.expect(len(names))
    families.OWN["deepseek_v3"] = {"num_key_value_heads": 8, "head_dim": 32}
    report = Report("Ours over transformers' code", ["architecture", *CASES])
    for name in names:
        kind = getattr(transformers, name)
        with tempfile.TemporaryDirectory() as folder:
            module = families.random_of(kind, families.small_config(kind.config_class, SIZES))
            module.to(torch.bfloat16).save_pretrained(folder)
            ours = _loaded(folder, int8=settings.int8)
            with by_transformers(name):
                theirs = _loaded(folder, int8=settings.int8)
        found = []
        for rows, count, warm_up, turns in CASES.values():
            with torch.inference_mode():
                for model in (ours, theirs):
                    for _ in range(warm_up):
                        _seconds(model, rows, count)
                pairs = [
                    (_seconds(ours, rows, count), _seconds(theirs, rows, count))
                    for _ in range(turns)
                ]
            found.append(median(slow / fast for fast, slow in pairs))
        report.rows.append([name, *found])
        progress(name)
    worst = min(min(row[2:]) for row in report.rows)
    report.goals.append(Goal("a step by transformers' code over ours", worst, GOAL, at_most=False))
    return report


BENCHMARK = Benchmark(Settings, ways)
