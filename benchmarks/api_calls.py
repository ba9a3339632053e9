"""`api-calls`: calls of the API for a token of the answer, by program, as figure 11 of Pie.

A program's own record tells its calls. As in the paper, those that name a command queue are of the
inference layer, all others of the control layer; of beam search the best beam's tokens count.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from tokenizers import Tokenizer

from benchmarks.inferlets.grown import EMBEDDED
from benchmarks.inferlets.pairs import PAIRS, STORY
from pie_control.api.signatures import SIGNATURES
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client
from pie_py.config.model import ModelConfig
from pie_py.wire.record import read_record

LIBRARY = Path(__file__).parents[1] / "inferlets"
START = {"prompt": "Once upon a time", "max_tokens": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # a file of the library, and its options
    "text completion": ("text_completion/main.py", START),
    "the same, by the contract alone": ("text_completion/raw.py", START),
    "prefix caching": ("prefix_caching/main.py", PAIRS["prefix caching"].options),
    "speculation, lookup": ("speculative_decoding/main.py", STORY),
    "Jacobi decoding": ("jacobi_decoding/main.py", {}),
    "attention sink": ("attention_sink/main.py", {}),
    "windowed attention": ("windowed_attention/main.py", {}),
    "EBNF decoding": ("ebnf_decoding/main.py", {}),
    "watermarking": ("watermarking/main.py", {}),
    "beam search, width 3": ("beam_search/main.py", {"width": 3}),
    "beam search, width 5": ("beam_search/main.py", {"width": 5}),
}
PAPER = {"text completion": "1.6, 1.5", "beam search, width 3": "17, 13"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Calls of the API for a token, by program."""

    only: tuple[str, ...] = options.some_of(
        "--only", tuple(CASES), tuple(CASES), "Which programs. Repeatable; all by default."
    )


async def _answers(endpoint: str, names: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
    """What each program answers, and its instance, one program at a time."""
    found = {}
    async with Client(endpoint) as client:
        for name in names:
            file, given = CASES[name]
            args = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
            instance = await client.launch(await client.upload(LIBRARY / file), args)
            sent = "".join([str(piece) async for piece in instance])
            result = await instance.result()
            found[name] = json.loads(result) if result else {"text": sent}, instance.id
    return found


def _tokens(answer: Any, tokenizer: Tokenizer) -> int:
    """Tokens of an answer, of beam search the best text's."""
    best = answer[0] if isinstance(answer, list) else answer
    if "tokens" in best:
        return len(best["tokens"])
    return len(tokenizer.encode(best["text"], add_special_tokens=False))


def _row(name: str, answer: Any, record: Path, tokenizer: Tokenizer) -> list[Any]:
    calls = [one.name.split(".") for one in read_record(record).calls]
    known = [SIGNATURES[of][call].params for of, call in calls if of in SIGNATURES]
    inference = sum("queue" in params for params in known)
    tokens = _tokens(answer, tokenizer)
    layers = [inference / tokens, (len(calls) - inference) / tokens]
    return [name, tokens, len(calls), *layers, sum(layers), PAPER.get(name)]


def api_calls(settings: Settings, progress: Progress) -> Report:
    """Runs each program on a server that records it."""
    progress.expect(1)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        model = ModelConfig(source="pie-tiny", kv_pages=1024)
        with bench_server(model, recording={"folder": folder}) as server:
            found = anyio.run(_answers, server.endpoint, settings.only)
        rows = [
            _row(name, answer, Path(folder) / f"{instance}.jsonl", tokenizer)
            for name, (answer, instance) in found.items()
        ]
    progress("programs ran")
    return Report(
        "Calls of the API for a token of the answer",
        ["program", "tokens", "calls", "inference", "control", "calls a token", "paper"],
        rows,
        ["inference: calls that name a command queue; control: all others. The paper's likewise."],
    )


BENCHMARK = Benchmark(Settings, api_calls)
