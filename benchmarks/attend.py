"""`attend`: what it saves, and costs the text, that layers read a part of a long context.

One model in this process. A text is read, once for each policy that is told what it attends to;
then the tokens that follow it are forced, one a step, by each policy in turn over a context of its
own, so a busy machine slows all of them. Of each step the whole is timed, and the attention of all
layers: choosing what is read, and reading it. Times are those of the CPU, of all threads together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.programs_read import bound
from inferlet import Sampler, attention
from inferlet.device import Attend
from pie_inference import handlers
from pie_inference.attention import PreparedAttention
from pie_inference.attention.attended import AttendedAttention
from pie_inference.attention.torch_backend import _TorchPrepared
from pie_inference.handlers.base import ServedModel
from pie_inference.loading.assembly import load_models
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.config.model import ModelConfig
from pie_py.wire.device_programs import packed
from pie_py.wire.plan import EmbedText, Forward, Int32, SetSampler

DOCUMENTS = Path(__file__).parents[1] / "docs"
PAGE = 16
WARM_UP = 3  # steps that do not count
CHUNK = 512  # tokens of a prompt at a time
TIME_GOAL, TEXT_GOAL = 0.5, 0.05  # of the attention's time; nats a token


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Layers that read a part of a long context, over layers that read all of it."""

    model: ModelConfig = options.model()
    tokens: int = options.count("--tokens", 4096, "Tokens of the context.", least=256)
    parts: int = options.count("--parts", 4, "Policies keep one of so many parts.", least=2)
    steps: int = options.count("--steps", 512, "Tokens that are forced behind it.", least=8)
    threads: int = options.count("--threads", 1, "PyTorch's threads.")


@dataclass
class _Side:
    """A policy with its context."""

    name: str
    sampler: int  # -1: it reads all
    pages: Int32
    prompt: float = 0.0  # seconds, if it has run one
    fused: list[float] = field(default_factory=list)  # ms of each step, in one call or by halves
    whole: list[float] = field(default_factory=list)  # the same, layer by layer
    reading: list[float] = field(default_factory=list)  # of those, the attention's
    likely: list[float] = field(default_factory=list)  # log-probability of each token


def _policies(tokens: int, parts: int) -> dict[str, Attend]:
    kept = tokens // parts
    return {
        "Quest": attention.quest(pages=kept // PAGE),
        "Quest together": attention.quest(pages=kept // PAGE, together=True),
        "sinks": attention.sinks(first=4, window=kept - 4),
        "TOVA": attention.tova(budget=kept),
        "H2O": attention.h2o(heavy=kept // 2, recent=kept - kept // 2),
        "SnapKV": attention.snapkv(budget=kept),
    }


@torch.inference_mode()
def attend(settings: Settings, progress: Progress) -> Report:
    """Measures all policies, in turns."""
    torch.set_num_threads(settings.threads)
    policies = _policies(settings.tokens, settings.parts)
    each = -(-(settings.tokens + settings.steps + 1) // PAGE)
    served = {"page_size": PAGE, "kv_pages": each * (len(policies) + 1), "embeds": 1024}
    model = load_models([settings.model.model_copy(update=served)])[0]
    vocabulary = model.network.shape.vocab_size
    text = _text(model, settings.tokens + settings.steps + 1)
    pages = np.arange(each * (len(policies) + 1), dtype=np.int32).reshape(-1, each)
    sides = [
        _Side("all", -1, pages[0]),
        *(_Side(name, i, pages[1 + i]) for i, name in enumerate(policies)),
    ]
    programs = [bound(one, vocabulary) for one in policies.values()]
    count, greedy = len(programs), bound(Sampler(temperature=0.0), vocabulary)
    handlers.samplers.set_sampler(model, _samplers(count, packed([greedy] * count, programs)))
    progress.expect(settings.steps + len(sides))
    places = np.arange(settings.tokens, dtype=np.int32)
    for side in sides:
        told = side.sampler >= 0 and programs[side.sampler].program.window is not None
        if told or side.sampler < 0:
            _read(model, side, text[: settings.tokens])
        else:
            model.cache.copy(_slots(sides[0], places), _slots(side, places))
        progress(f"prompt of {side.name}")
    for step in range(settings.steps):
        order = sides if step % 2 else sides[::-1]
        for side in order:
            _step(model, side, text, settings.tokens + step, step)
        progress(f"step {step}")
    return _report(settings, model, sides)


def _text(model: ServedModel, count: int) -> list[int]:
    """Tokens of this repository's documents."""
    tokenizer = Tokenizer.from_file(str(Path(model.description.folder) / "tokenizer.json"))
    whole = "\n\n".join(path.read_text() for path in sorted(DOCUMENTS.glob("*.md")))
    tokens: list[int] = tokenizer.encode(whole).ids[:count]
    return tokens


def _samplers(count: int, programs: dict[str, Any]) -> SetSampler:
    return SetSampler(
        samplers=np.arange(count, dtype=np.int32),
        seeds=np.zeros((count, 2), np.uint32),
        rows=np.full(count, -1, np.int32),
        **programs,
    )


def _read(model: ServedModel, side: _Side, tokens: list[int]) -> None:
    """Runs a prompt in parts, of which the side's program is told."""
    begin = process_time()
    for first in range(0, len(tokens), CHUNK):
        _forward(model, side, tokens[first : first + CHUNK], first, side.sampler)
    side.prompt = process_time() - begin


@contextmanager
def _by_layers(model: ServedModel) -> Iterator[None]:
    fused = model.fused_steps
    object.__setattr__(model, "fused_steps", None)
    try:
        yield
    finally:
        object.__setattr__(model, "fused_steps", fused)


def _step(model: ServedModel, side: _Side, text: list[int], at: int, step: int) -> None:
    """Runs the token at a place, both ways, and looks how likely the one behind it is."""
    begin = process_time()
    _forward(model, side, text[at : at + 1], at, side.sampler, step + 1)
    side.fused.append((process_time() - begin) * 1e3)
    reading = [0.0]
    with _by_layers(model), _timed(reading):
        begin = process_time()
        logits = _forward(model, side, text[at : at + 1], at, side.sampler, step + 1)
        side.whole.append((process_time() - begin) * 1e3)
    side.reading.append(reading[0] * 1e3)
    side.likely.append(logits.float().log_softmax(-1)[text[at + 1]].item())


def _slots(side: _Side, places: Int32) -> Int32:
    found: Int32 = side.pages[places // PAGE] * np.int32(PAGE) + places % np.int32(PAGE)
    return found


def _forward(
    model: ServedModel, side: _Side, tokens: list[int], first: int, sampler: int = -1, step: int = 0
) -> torch.Tensor:
    """Runs tokens from a place on; the last one's logits."""
    count = len(tokens)
    places = np.arange(first, first + count, dtype=np.int32)
    inputs = np.arange(count, dtype=np.int32)
    held = -(-first // PAGE)
    used = np.full(held, PAGE, np.int32)
    if first % PAGE:
        used[-1] = first % PAGE
    none = np.zeros(2, np.int32)
    handlers.embeds.embed_text(model, EmbedText(np.array(tokens, np.int32), places, inputs))
    handlers.forward.forward(
        model,
        Forward(
            input_starts=np.array([0, count], np.int32),
            inputs=inputs,
            page_starts=np.array([0, held], np.int32),
            pages=side.pages[:held],
            page_used=used,
            has_masked=none[:1],
            output_slots=_slots(side, places),
            output_starts=np.array([0, 1], np.int32),
            outputs=inputs[-1:],
            mask_starts=none,
            mask=none[:0],
            attends=np.array([sampler], np.int32),
            attend_steps=np.array([step], np.int32),
        ),
    )
    return model.network.logits(model.embeds.read(inputs[-1:]))[0]


@contextmanager
def _timed(total: list[float]) -> Iterator[None]:
    """Adds up the seconds of attention, of whatever kind."""
    kinds: list[Any] = [_TorchPrepared, AttendedAttention]
    plain = [kind.attend for kind in kinds]

    def timed(attend: Any) -> Any:
        def run(self: PreparedAttention, *given: Any) -> torch.Tensor:
            begin = process_time()
            found: torch.Tensor = attend(self, *given)
            total[0] += process_time() - begin
            return found

        return run

    for kind, one in zip(kinds, plain, strict=True):
        kind.attend = timed(one)
    try:
        yield
    finally:
        for kind, one in zip(kinds, plain, strict=True):
            kind.attend = one


def _report(settings: Settings, model: ServedModel, sides: list[_Side]) -> Report:
    rows: list[list[object]] = []
    whole = sides[0]
    for side in sides:
        rows.append(
            [
                side.name,
                median(side.fused[WARM_UP:]),
                _ratio(side.fused, whole.fused),
                median(side.whole[WARM_UP:]),
                _ratio(side.whole, whole.whole),
                median(side.reading[WARM_UP:]),
                _ratio(side.reading, whole.reading),
                _mean(side),
                _mean(side) - _mean(whole),
                _error(side, whole),
                side.prompt / whole.prompt if side.prompt else "",
            ]
        )
    quest = sides[1]
    return Report(
        f"Reading 1/{settings.parts} of {settings.tokens} tokens, {model.description.name},"
        f" {settings.threads} threads",
        [
            "policy",
            "step, ms",
            "step, ratio",
            "by layers, ms",
            "by layers, ratio",
            "attention, ms",
            "attention, ratio",
            "log-likelihood, nats a token",
            "more",
            "standard error",
            "prompt, ratio",
        ],
        rows,
        [
            "Ratios to `all`: the median of those of neighbouring steps, which are taken in turns.",
            "A step is one call, which programs interrupt in each layer; then the same by layers,"
            " of which attention is a part.",
        ],
        [
            Goal("Quest, attention, ratio", _ratio(quest.reading, whole.reading), TIME_GOAL),
            Goal("Quest, nats a token less likely", _mean(whole) - _mean(quest), TEXT_GOAL),
        ],
    )


def _mean(side: _Side) -> float:
    return sum(side.likely) / len(side.likely)


def _error(side: _Side, whole: _Side) -> float:
    """Standard error of the mean difference of both, of a token."""
    more = np.array(side.likely) - np.array(whole.likely)
    return float(more.std(ddof=1) / len(more) ** 0.5)


def _ratio(above: list[float], below: list[float]) -> float:
    pairs = zip(above[WARM_UP:], below[WARM_UP:], strict=True)
    return median(a / b for a, b in pairs)


BENCHMARK = Benchmark(Settings, attend)
