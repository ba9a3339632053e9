"""`device-programs`: what samplers that are programs cost in a step, beside built-in ones.

One worker's engine in this process, random weights. Steps with one kind of sampler and with another
are taken in turns, so a busy machine slows both. Of each step the whole is timed, and the handler
that chooses the tokens.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from inferlet import Sampler, device, samplers
from inferlet.device import ProgramSampler, State, Tensor
from pie_control.api.device_programs import read_parameters
from pie_control.device_programs.reading import read
from pie_inference.handlers.base import ServedModel
from pie_inference.serving.engine import Engine
from pie_py.bench.report import Goal, Report
from pie_py.config.model import ModelConfig
from pie_py.device_programs.bound import Bound, bind
from pie_py.device_programs.program import program_for
from pie_py.wire.device_programs import packed
from pie_py.wire.plan import Batch, EmbedSampled, EmbedText, Forward, Plan, Sample, SetSampler

NAME = "measured"
CONTEXT = 64  # tokens before each sequence's next one
WARM_UP = 3  # steps that do not count
TEMPERATURE, TOP_P = 0.8, 0.9
# As the published config.json of SmolLM2-135M has it, and the embedded model's sizes.
_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "bfloat16",
    "head_dim": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "pie-tiny": {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2403,
    },
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
    },
}
GREEDY, DRAWN = "greedy", f"temperature {TEMPERATURE}, top-p {TOP_P}"
# Parameters that are programs, over a step with a temperature, and the goal of each at 8 rows.
PARAMETERS: dict[str, tuple[dict[str, Any], float]] = {
    "typical_p 0.9": ({"typical_p": 0.9}, 1.2),
    "penalties": ({"presence_penalty": 0.5, "repetition_penalty": 1.1}, 1.3),
    "DRY": ({"dry_multiplier": 0.8}, 1.3),
}
# Of a step with programs, over one with the built-in samplers: at one row, at many, with many
# programs.
ONE_GOAL, MANY_GOAL, SEVERAL_GOAL = 1.02, 1.05, 1.3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Steps whose samplers are device programs, over steps with built-in ones of equal meaning."""

    shape: str = options.one_of("--shape", tuple(SHAPES), "smollm2-135m", "Sizes of the model.")
    rows: int = options.count("--rows", 32, "Sequences of a large step.", least=8)
    steps: int = options.count("--steps", 15, "Steps of each, in turns.")
    deviation: float = options.real("--deviation", 7.0, "Standard deviation of the logits.")
    threads: int = options.count("--threads", 1, "PyTorch's threads.")


@device.program
def greedy(logits: Tensor) -> Tensor:
    """The most likely token, by a program that no worker has compiled."""
    return (logits * 1.0).argmax()


@device.program
def drawn(logits: Tensor, state: State) -> Tensor:
    """A token of the nucleus."""
    return device.draw(samplers.top_p(logits / state.temperature, state.top_p))


def _other(number: int) -> ProgramSampler:
    """The same meaning as `drawn`, as a program of its own."""
    names: dict[str, Any] = {"temperature": TEMPERATURE, f"top_p{number}": TOP_P}
    share = f"top_p(logits / state.temperature, state.top_p{number})"
    rule = device.program(f"def rule(logits, state):\n    return draw({share})")
    return rule(**names)


@dataclass
class _Sequences:
    """Sequences that stay where they are: each step's input overwrites that of the one before."""

    model: ServedModel
    first: int  # sampler and embed
    count: int
    programs: list[Bound]
    remembers: bool = False
    steps: int = 0

    def begin(self) -> list[Batch]:
        """Makes the samplers, and has each choose a token."""
        seeds = np.stack([self._own - self.first, np.zeros_like(self._own)], 1)
        made = SetSampler(
            samplers=self._own,
            seeds=seeds.astype(np.uint32),
            rows=self._own if self.remembers else np.full(self.count, -1, np.int32),
            **packed(self.programs),
        )
        where = np.zeros(self.count, np.int32)
        return [made, EmbedText(self._own - self.first + 2, where, self._own), self._sample()]

    def step(self) -> list[Batch]:
        """Embeds what was chosen, runs the layers, chooses again."""
        size, own = self.model.cache.page_size, self._own
        each = CONTEXT // size + 1
        pages = (own[:, None] * each + np.arange(each)).astype(np.int32)
        starts = np.arange(self.count + 1, dtype=np.int32)
        forward = Forward(
            input_starts=starts,
            inputs=own,
            page_starts=starts * np.int32(each - 1),
            pages=pages[:, :-1].reshape(-1),
            page_used=np.full(self.count * (each - 1), size, np.int32),
            has_masked=np.zeros(self.count, np.int32),
            output_slots=pages[:, -1] * np.int32(size),
            output_starts=starts,
            outputs=own,
            mask_starts=np.zeros(self.count + 1, np.int32),
            mask=np.zeros(0, np.int32),
        )
        self.steps += 1
        positions = np.full(self.count, CONTEXT, np.int32)
        return [EmbedSampled(own, positions, own), forward, self._sample()]

    @property
    def _own(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.arange(self.first, self.first + self.count, dtype=np.int32)

    def _sample(self) -> Sample:
        return Sample(
            embeds=self._own,
            samplers=self._own,
            steps=np.full(self.count, self.steps, np.uint32),
            top=np.zeros(self.count, np.int32),
            masked=np.full(self.count, -1, np.int32),
            masks=np.zeros((0, 0), np.uint32),
        )


@dataclass
class _Side:
    """One of those that take turns."""

    sequences: _Sequences
    whole: list[float]  # µs of each step
    choosing: list[float]  # of those, the sample handler's

    def tokens(self) -> list[int]:
        """The tokens that were chosen last."""
        own = self.sequences
        return own.model.samplers.tokens[own.first : own.first + own.count].tolist()


def device_programs(settings: Settings, progress: Progress) -> Report:
    """Measures each pair, in turns."""
    torch.set_num_threads(settings.threads)
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        engine = _engine(settings.shape, Path(folder))
    model = engine.served(NAME)
    _sharpen(model, settings.deviation)
    pairs = list(_pairs(model.network.shape.vocab_size, settings.rows))
    progress.expect(len(pairs))
    rows: list[list[object]] = []
    goals = []
    for what, sampler, programs, goal in pairs:
        same = what not in PARAMETERS
        of_programs, built_in = _turns(engine, sampler, programs, settings.steps, same)
        whole = _ratio(of_programs.whole, built_in.whole)
        rows.append(
            [
                what,
                len(programs),
                median(built_in.whole),
                median(built_in.choosing),
                _ratio(of_programs.choosing, built_in.choosing),
                whole,
            ]
        )
        goals.append(Goal(f"a step with {what}, {len(programs)} rows", whole, goal))
        progress(what)
    return Report(
        f"Steps with device programs over steps with built-in samplers, {settings.shape}",
        ["samplers", "rows", "built-in step, µs", "choosing", "choosing, ratio", "step, ratio"],
        rows,
        ["Ratios: the median of those of neighbouring steps, which are taken in turns."],
        goals,
    )


def _pairs(vocabulary: int, rows: int) -> Iterator[tuple[str, Sampler, list[Bound], float]]:
    """A case: its name, the built-in sampler, the programs of the rows, and the goal."""
    fields: dict[str, Any] = {"temperature": TEMPERATURE, "top_p": TOP_P}
    one, best = bound(drawn(**fields), vocabulary), bound(greedy(), vocabulary)
    likeliest, drawing = Sampler(temperature=0.0), Sampler(**fields)
    yield GREEDY, likeliest, [best], ONE_GOAL
    yield DRAWN, drawing, [one], MANY_GOAL
    yield GREEDY, likeliest, [best] * rows, MANY_GOAL
    yield DRAWN, drawing, [one] * rows, MANY_GOAL
    several = [bound(_other(i), vocabulary) for i in range(8)]
    yield f"8 programs of {DRAWN}", drawing, (several * rows)[:rows], SEVERAL_GOAL
    for what, (parameters, goal) in PARAMETERS.items():
        yield what, Sampler(), [bound(Sampler(**parameters), vocabulary)] * 8, goal


def _turns(
    engine: Engine, built_in: Sampler, programs: list[Bound], steps: int, same: bool
) -> tuple[_Side, _Side]:
    """Times of steps with programs and with built-in samplers.

    Raises:
        RuntimeError: they mean the `same`, and chose different tokens.
    """
    model, count = engine.served(NAME), len(programs)
    compiled = bound(built_in, model.network.shape.vocab_size)
    sides = (
        _Side(_Sequences(model, 0, count, programs, not same), [], []),
        _Side(_Sequences(model, count, count, [compiled] * count), [], []),
    )
    for side in sides:
        _run(engine, side, side.sequences.begin)
    for turn in range(WARM_UP + steps):
        for side in sides if turn % 2 else sides[::-1]:
            _run(engine, side, side.sequences.step)
        if same and sides[0].tokens() != sides[1].tokens():
            raise RuntimeError(f"step {turn}: the programs chose other tokens")
    for side in sides:
        del side.whole[: 1 + WARM_UP], side.choosing[: 1 + WARM_UP]
    return sides


def _run(engine: Engine, side: _Side, batches: Callable[[], list[Batch]]) -> None:
    found = engine.run(Plan(1, NAME, batches()))
    if wrong := [one.error or one.refused for one in found.results if one.error or one.refused]:
        raise RuntimeError(f"a step failed: {wrong[0]}")
    side.whole.append(sum(one.nanoseconds for one in found.results) / 1e3)
    side.choosing.append(found.results[-1].nanoseconds / 1e3)


@torch.inference_mode()
def _sharpen(model: ServedModel, deviation: float) -> None:
    """Has the logits differ as a trained model's, of which a nucleus is few tokens: as they come of
    random weights, it would be half the vocabulary.
    """
    logits = model.network.logits

    def sharper(*args: Any, **kwargs: Any) -> torch.Tensor:
        return logits(*args, **kwargs).mul_(scale)

    spread = logits(torch.randn_like(model.embeds.hidden[:8])).float().std().item()
    scale = deviation / spread
    model.network.logits = sharper  # type: ignore[method-assign]


def _ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))


def _engine(shape: str, folder: Path) -> Engine:
    (folder / "config.json").write_text(json.dumps({**_SHAPE, **SHAPES[shape]}))
    config = ModelConfig(source=str(folder), name=NAME, load_format="dummy", kv_pages=1024)
    return Engine([config])


def bound(sampler: Sampler | ProgramSampler, vocabulary: int) -> Bound:
    """A program with its values as the server reads it, for a model of so many tokens."""
    found = read_parameters(sampler.to_json()).program
    text, _ = read(found.key)
    return bind(program_for(text, vocabulary), found.values, vocabulary)


BENCHMARK = Benchmark(Settings, device_programs)
