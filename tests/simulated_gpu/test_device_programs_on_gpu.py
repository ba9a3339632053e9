"""Device programs on a GPU: the host waits for nothing, and they choose as on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from support.checkpoints import make_llama
from support.engine_plans import engine_of, forward, sample
from support.model_rig import ints
from support.programs_read import set_samplers
from support.random_device_programs import SIZE, random_program, random_row, random_state

from inferlet import Sampler, device, samplers
from inferlet.device import ProgramSampler, State, Tensor
from pie_inference.sampling.pool import Choices, SamplerPool
from pie_inference.sampling.remembered import SavedLogits
from pie_inference.serving.engine import Engine
from pie_inference.serving.flight import Flight
from pie_py.device_programs.bound import ARRAYS, Bound
from pie_py.device_programs.language import OPERATIONS
from pie_py.device_programs.program import Program
from pie_py.wire.plan import Batch, BatchResult, Plan, SetSampler
from simulated_gpu.driver import device as gpu

VOCABULARY = 512


@device.program
def greedy(logits: Tensor) -> Tensor:
    return logits.argmax()


@device.program
def above_zero(logits: Tensor) -> Tensor:
    """Depends on the logits themselves, not only on their differences."""
    return (logits > 0.0).to_int().sum()


@device.program
def careful(logits: Tensor, state: State) -> Tensor:
    logits = samplers.repetition_penalty(logits, 1.2)
    logits = samplers.no_repeat_ngram(logits, 3, 32)
    state.heat *= 0.99
    return device.draw(samplers.top_p(logits / state.heat, 0.9))


def results(worker: Engine, *batches: Batch) -> list[BatchResult]:
    """Of a plan; on the GPU the host waited for nothing before they were wanted."""
    before = len(gpu.asked)
    found = worker.start(Plan(1, "m", list(batches)))
    if isinstance(found, Flight):
        assert gpu.asked[before:] == []
        flight = found
        while (part := flight.take(wait=True)) is None or not part.last:
            pass
        found = part
    assert [result.error for result in found.results] == [None] * len(batches)
    return found.results


BUILT = Sampler(temperature=0.7, top_p=0.9)


def made(programs: Sequence[Sampler | ProgramSampler]) -> SetSampler:
    count = len(programs)
    seeds = np.arange(2 * count).reshape(count, 2)
    return set_samplers(programs, VOCABULARY, seeds=seeds, rows=range(count))


def test_programs_choose_what_they_choose_on_a_cpu_and_nothing_waits(tmp_path: Path) -> None:
    told = []
    for where in ("cpu", "cuda"):
        folder = make_llama(tmp_path / where, head_dim=64, deviation=0.05)
        worker = engine_of(folder, device=where, dtype="float32")
        programs = made([greedy(), careful(heat=0.8), BUILT, above_zero(), careful(heat=1.2)])
        results(worker, *forward(0, 40, 0, output=1000), programs)
        for step in range(3):
            choice = sample(5, step, 1000)
            choice.samplers = ints(range(5))
            (result,) = results(worker, choice)
            assert result.values is not None
            told.append((result.values.tokens.tolist(), result.refused))
    assert told[:3] == told[3:]


def test_no_operation_asks_the_gpu() -> None:
    chance, seen = Random(3), set[str]()
    there = torch.device("cuda")
    while seen != set(OPERATIONS):
        program = random_program(chance, 40)
        seen |= {node.operation for node in program.nodes}
        pool, saved = SamplerPool(SIZE, there, 4), SavedLogits(SIZE, there)
        pool.device_programs.set(
            range(4), [_bound(program, random_state(chance)) for _ in range(4)]
        )
        pool.rows[:], pool.given[:], pool.seeds[:] = range(4), 5, range(4)
        rows = [random_row(chance) for _ in range(4)]
        logits = torch.tensor([row.logits for row in rows], dtype=torch.float32).to(there)
        saved.put(torch.arange(4), logits)
        mixed = ints([[row, row] for row in range(4)])
        before = len(gpu.asked)
        for step in range(2):
            pool.choose(Choices(ints(range(4)), np.full(4, step, np.uint32), mixed, saved), logits)
        assert gpu.asked[before:] == [], program.text


def _bound(program: Program, state: dict[str, Any]) -> Bound:
    """Any values, as bytes: a guest cannot give what is no number, but its programs make such."""
    parts = [np.array(state[name], ARRAYS[of.kind]).tobytes() for name, of in program.names]
    return Bound(program, b"".join(parts))
