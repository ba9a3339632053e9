"""What samplers do to logits, in any order, beside the definitions written out for one row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.model_rig import ints
from support.rule_rows import VOCABULARY, Row, SamplerRows, chances, keep, ranked
from transformers import LogitsProcessorList, generation

from pie_inference.sampling.operations import adjust
from pie_inference.sampling.pool import Choices, Program
from pie_py.wire.operations import ARGUMENTS, DEFAULT_ORDER, OTHERS, Operation, Step


class Text:
    """One row: what is known of it."""

    def __init__(self, given: list[int], chosen: list[int]) -> None:
        self.given, self.chosen = given, chosen
        self.tokens = given + chosen
        self.mask: list[int] | None = None


def plain(row: Row, step: Step, text: Text) -> Row:
    """The definition of one operation."""
    a, op, row = list(step.arguments), step.operation, row.copy()
    if op is Operation.LOGIT_BIAS:
        for token, value in step.tokens:
            row[token] += value
    elif op is Operation.ALLOWED_TOKENS:
        row = keep(row, [token for token, _ in step.tokens])
    elif op is Operation.REPETITION_PENALTY:
        for token in set(text.tokens):
            row[token] = row[token] / a[0] if row[token] > 0 else row[token] * a[0]
    elif op is Operation.PRESENCE_PENALTY:
        row[list(set(text.chosen))] -= a[0]
    elif op is Operation.FREQUENCY_PENALTY:
        for token in text.chosen:
            row[token] -= a[0]
    elif op is Operation.MASK and text.mask is not None:
        row = keep(row, text.mask)
    elif op is Operation.TEMPERATURE:
        row /= a[0]
    elif op is Operation.TOP_K:
        row = keep(row, ranked(row)[: int(a[0])])
    elif op is Operation.TOP_P:
        order, p = ranked(row), chances(row)
        count = next(i for i in range(1, 65) if p[order[:i]].sum() >= a[0] - 1e-12 or i == 64)
        row = keep(row, order[:count])
    elif op is Operation.MIN_P:
        row = keep(row, [t for t in range(len(row)) if row[t] >= row.max() + math.log(a[0])])
    return row


def words(allowed: list[int]) -> NDArray[np.uint32]:
    bits = np.zeros(VOCABULARY, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


class Bench(SamplerRows):
    def set(self, slot: int, steps: list[Step]) -> None:
        arguments = np.zeros((len(steps), ARGUMENTS), np.float32)
        for row, step in zip(arguments, steps, strict=True):
            row[: len(step.arguments)] = step.arguments
        tokens = [
            (ints([t for t, _ in s.tokens]), np.array([n for _, n in s.tokens], np.float32))
            for s in steps
        ]
        program = Program(tuple(step.operation for step in steps), arguments, tokens)
        numbers = np.array([[1, 1, 0]], np.float32)
        seeds = np.zeros((1, 2), np.uint32)
        self.pool.set(ints([slot]), numbers, ints([0]), seeds, ints([slot]), [program])

    def adjusted(
        self,
        logits: torch.Tensor,
        steps: list[int],
        masks: list[list[int] | None] | None = None,
    ) -> torch.Tensor:
        count = len(logits)
        rows = [words(mask) for mask in masks or () if mask is not None]
        each = iter(range(count))
        masked = [-1 if mask is None else next(each) for mask in masks or [None] * count]
        choices = Choices(
            ints(range(count)),
            np.array(steps, np.uint32),
            ints(masked),
            np.array(rows, np.uint32).reshape(len(rows), VOCABULARY // 32),
            np.zeros((0, OTHERS), np.int32),
            self.kept,
        )
        out = logits.clone()
        adjust(self.pool, out, choices)
        return out


def step_of(operation: Operation) -> st.SearchStrategy[Step]:
    """Arguments of an operation."""
    ids = st.integers(0, VOCABULARY - 1)
    share = st.sampled_from([0.05, 0.3, 0.75, 1.0])
    amount = st.sampled_from([0.0, 0.5, 2.0])
    few = st.sets(ids, min_size=1, max_size=9)
    arguments: dict[Operation, list[st.SearchStrategy[float]]] = {
        Operation.REPETITION_PENALTY: [st.sampled_from([0.5, 1.3])],
        Operation.PRESENCE_PENALTY: [amount],
        Operation.FREQUENCY_PENALTY: [amount],
        Operation.TEMPERATURE: [st.sampled_from([0.5, 1.0, 3.0])],
        Operation.TOP_K: [st.integers(1, VOCABULARY + 3).map(float)],
    }
    tokens: st.SearchStrategy[list[tuple[int, float]]] = st.just([])
    if operation is Operation.ALLOWED_TOKENS:
        tokens = few.map(lambda ids: [(token, 0.0) for token in sorted(ids)])
    elif operation is Operation.LOGIT_BIAS:
        biases = st.dictionaries(ids, st.floats(-4, 4, width=32), max_size=4)
        tokens = biases.map(lambda given: list(given.items()))
    numbers = arguments.get(operation, [share] if operation > Operation.TOP_K else [])
    return st.builds(lambda a, t: Step(operation, a, t), st.tuples(*numbers), tokens)


programs = st.lists(st.sampled_from(Operation), max_size=7, unique=True).flatmap(
    lambda operations: st.tuples(*map(step_of, operations)).map(list)
)
texts = st.lists(st.integers(0, 5), max_size=14)


@given(
    rows=st.lists(st.tuples(programs, texts, texts), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150)
def test_any_operations_in_any_order(
    rows: list[tuple[list[Step], list[int], list[int]]], seed: int
) -> None:
    bench, draw = Bench(), np.random.default_rng(seed)
    logits = draw.normal(0, 2, (len(rows), VOCABULARY)).astype(np.float32)
    known: list[Text] = []
    for slot, (steps, before, chosen) in enumerate(rows):
        bench.set(slot, steps)
        bench.feed(slot, before)
        for i, token in enumerate(chosen):
            bench.choose(slot, i, token)
        text = Text(before, chosen)
        text.mask = [None, [1, 2, 40], list(range(50))][slot % 3]
        known.append(text)
    found = bench.adjusted(
        torch.from_numpy(logits),
        [len(text.chosen) for text in known],
        [text.mask for text in known],
    )
    for slot, (steps, _, _) in enumerate(rows):
        wanted = logits[slot].astype(np.float64)
        for step in steps:
            if not np.isfinite(wanted).any():
                break
            wanted = plain(wanted, step, known[slot])
        got = found[slot].double().numpy()
        if not np.isfinite(wanted).any():
            continue
        edge = np.isfinite(wanted) != np.isfinite(got)
        assert not edge.any(), (steps, np.flatnonzero(edge), wanted[edge], got[edge])
        both = np.isfinite(wanted)
        np.testing.assert_allclose(got[both], wanted[both], atol=1e-3, rtol=1e-4)


Op, G = Operation, generation
# Of each step: how a number is drawn, and what transformers calls it.
STEPS: dict[Operation, tuple[Any, Any]] = {
    Op.LOGIT_BIAS: (lambda d: round(d.uniform(-4, 4), 2), None),
    Op.REPETITION_PENALTY: (lambda d: d.uniform(0.6, 1.8), G.RepetitionPenaltyLogitsProcessor),
    Op.TEMPERATURE: (lambda d: d.uniform(0.3, 2.5), G.TemperatureLogitsWarper),
    Op.TOP_K: (lambda d: int(d.integers(1, VOCABULARY)), G.TopKLogitsWarper),
    Op.TOP_P: (lambda d: d.uniform(0.05, 0.99), G.TopPLogitsWarper),
    Op.MIN_P: (lambda d: d.uniform(0.01, 0.5), G.MinPLogitsWarper),
}


def test_sets_of_steps_are_those_of_transformers() -> None:
    """In the default order."""
    draw, bench = np.random.default_rng(0), Bench()
    for _ in range(300):
        chosen = set(draw.choice(list(STEPS), draw.integers(1, 6), replace=False))
        tokens = draw.integers(0, 6, draw.integers(1, 12)).tolist()
        logits = torch.from_numpy(draw.normal(0, 2.5, (1, VOCABULARY)).astype(np.float32))
        steps, theirs = [], LogitsProcessorList()
        for operation in (one for one in DEFAULT_ORDER if one in chosen):
            value = STEPS[operation][0](draw)
            if operation is Op.LOGIT_BIAS:
                steps.append(Step(operation, [], [(3, value), (9, -value)]))
                theirs.append(G.SequenceBiasLogitsProcessor({(3,): value, (9,): -value}))
            else:
                steps.append(Step(operation, [value]))
                theirs.append(STEPS[operation][1](value))
        bench.set(0, steps)
        bench.feed(0, tokens)
        wanted = theirs(torch.tensor([tokens]), logits.clone())
        found = bench.adjusted(logits, [0])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, msg=str(steps))
