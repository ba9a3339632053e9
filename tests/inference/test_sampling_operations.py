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
from transformers import LogitsProcessorList, generation

from pie_inference.sampling.noise import coins
from pie_inference.sampling.operations import adjust
from pie_inference.sampling.pool import Choices, Program, SamplerPool
from pie_inference.sampling.remembered import SavedLogits
from pie_py.wire.operations import ARGUMENTS, DEFAULT_ORDER, HISTORY, OTHERS, Operation, Step

VOCABULARY = 64
WORD = 2**64 - 1
CPU = torch.device("cpu")
Row = NDArray[np.float64]


def hashed(start: int, number: int) -> int:
    """The `number`-th word of SplitMix64 from a start."""
    word = (start + (number + 1) * 0x9E3779B97F4A7C15) & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


class Text:
    """One row: what is known of it."""

    def __init__(self, given: list[int], chosen: list[int], coin: float) -> None:
        self.given, self.chosen, self.coin = given, chosen, coin
        self.tokens = given + chosen
        self.others: list[Row] = []
        self.mask: list[int] | None = None


def chances(row: Row) -> Row:
    weights = np.exp(row - row.max())
    found: Row = weights / weights.sum()
    return found


def keep(row: Row, kept: list[int]) -> Row:
    out = np.full_like(row, -np.inf)
    out[kept] = row[kept]
    return out


def ranked(row: Row) -> list[int]:
    return sorted(range(len(row)), key=lambda t: (-row[t], t))


def matched(tokens: list[int], place: int, breaks: set[int]) -> int:
    length = 0
    while length < place and tokens[place - 1 - length] == tokens[-1 - length]:
        if tokens[-1 - length] in breaks:
            break
        length += 1
    return length


def plain(row: Row, step: Step, text: Text) -> Row:
    """The definition of one operation."""
    a, op, row = list(step.arguments), step.operation, row.copy()
    if op is Operation.MIX:
        mixed = a[1] * row + sum(w * o for w, o in zip(a[2:], text.others, strict=False))
        return keep(mixed, [t for t in range(len(row)) if row[t] >= row.max() + math.log(a[0])])
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
    elif op is Operation.NO_REPEAT_NGRAM:
        size = int(a[0]) - 1
        last = text.tokens[len(text.tokens) - size :]
        for i in range(size, len(text.tokens)):
            if text.tokens[i - size : i] == last:
                row[text.tokens[i]] = -np.inf
    elif op is Operation.BANNED_SEQUENCES:
        banned: dict[float, list[int]] = {}
        for token, number in step.tokens:
            banned.setdefault(number, []).append(token)
        for *before, last_one in banned.values():
            if text.tokens[len(text.tokens) - len(before) :] == before:
                row[last_one] = -np.inf
    elif op is Operation.MIN_TOKENS:
        row[[token for token, _ in step.tokens if len(text.chosen) < a[0]]] = -np.inf
    elif op is Operation.DRY:
        breakers = {token for token, _ in step.tokens}
        taken: dict[int, float] = {}
        for i in range(1, len(text.tokens)):
            length = matched(text.tokens, i, breakers)
            if length and length >= a[2] and text.tokens[i] not in breakers:
                penalty = a[0] * a[1] ** (length - a[2])
                taken[text.tokens[i]] = max(penalty, taken.get(text.tokens[i], 0))
        for token, penalty in taken.items():
            row[token] -= penalty
    elif op is Operation.WATERMARK and text.tokens:
        start = hashed(int(a[2]) + (int(a[3]) << 24), text.tokens[-1])
        for token in range(len(row)):
            row[token] += a[0] * (hashed(start, token) >> 40 < a[1] * 2**24)
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
    elif op is Operation.EPSILON_CUTOFF or op is Operation.ETA_CUTOFF:
        p = chances(row)
        bar = a[0]
        if op is Operation.ETA_CUTOFF:
            entropy = -sum(q * math.log(q) for q in p if q > 0)
            bar = min(bar, math.sqrt(bar) * math.exp(-entropy))
        row = keep(row, [t for t in range(len(row)) if p[t] >= bar or row[t] == row.max()])
    elif op is Operation.TYPICAL_P:
        p = chances(row)
        entropy = -sum(q * math.log(q) for q in p if q > 0)
        with np.errstate(divide="ignore"):
            far = np.abs(-np.log(p) - entropy)
        order, count = sorted(range(len(row)), key=lambda t: (far[t], t)), 1
        while count < len(row) and p[order[:count]].sum() < a[0]:
            count += 1
        row = keep(row, [t for t in range(len(row)) if far[t] <= far[order[count - 1]]])
    elif op is Operation.XTC and text.coin < a[1]:
        p = chances(row)
        likely = [t for t in ranked(row) if p[t] >= a[0] and p[t] > 0]
        row[likely[:-1]] = -np.inf
    return row


def words(allowed: list[int]) -> NDArray[np.uint32]:
    bits = np.zeros(VOCABULARY, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


class Bench:
    """Samplers of a pool, one after the other in slots and rows."""

    def __init__(self) -> None:
        self.pool = SamplerPool(VOCABULARY, CPU, 16)
        self.kept = SavedLogits(VOCABULARY, CPU)

    def set(self, slot: int, steps: list[Step], seed: int = 0) -> None:
        arguments = np.zeros((len(steps), ARGUMENTS), np.float32)
        for row, step in zip(arguments, steps, strict=True):
            row[: len(step.arguments)] = step.arguments
        tokens = [
            (ints([t for t, _ in s.tokens]), np.array([n for _, n in s.tokens], np.float32))
            for s in steps
        ]
        program = Program(tuple(step.operation for step in steps), arguments, tokens)
        numbers = np.array([[1, 1, 0]], np.float32)
        seeds = np.array([[seed, 0]], np.uint32)
        self.pool.set(ints([slot]), numbers, ints([0]), seeds, ints([slot]), [program])

    def feed(self, slot: int, tokens: list[int], chosen: int = 0) -> None:
        count = len(tokens)
        places = np.arange(chosen, chosen + count)
        left = np.arange(count)[::-1]
        self.pool.feed(
            np.full(count, slot, np.int32), ints(tokens), np.zeros(count, np.bool_), places, left
        )

    def choose(self, slot: int, step: int, token: int) -> None:
        self.pool.note(ints([slot]), np.array([step], np.uint32), torch.tensor([token]))

    def adjusted(
        self,
        logits: torch.Tensor,
        steps: list[int],
        masks: list[list[int] | None] | None = None,
        mixed: list[list[int]] | None = None,
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
            np.array(mixed or [], np.int32).reshape(-1, OTHERS),
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
        Operation.MIX: [share, st.sampled_from([1.0, 1.5]), amount, amount.map(lambda x: -x)],
        Operation.REPETITION_PENALTY: [st.sampled_from([0.5, 1.3])],
        Operation.PRESENCE_PENALTY: [amount],
        Operation.FREQUENCY_PENALTY: [amount],
        Operation.NO_REPEAT_NGRAM: [st.integers(1, 4).map(float)],
        Operation.MIN_TOKENS: [st.integers(1, 15).map(float)],
        Operation.DRY: [amount, st.sampled_from([1.5, 2.0]), st.integers(0, 3).map(float)],
        Operation.WATERMARK: [amount, share, *[st.integers(0, 2**24 - 1).map(float)] * 2],
        Operation.TEMPERATURE: [st.sampled_from([0.5, 1.0, 3.0])],
        Operation.TOP_K: [st.integers(1, VOCABULARY + 3).map(float)],
        Operation.EPSILON_CUTOFF: [st.sampled_from([0.001, 0.02, 0.9])],
        Operation.ETA_CUTOFF: [st.sampled_from([0.001, 0.02, 0.9])],
        Operation.XTC: [st.sampled_from([0.0, 0.02, 0.1]), st.sampled_from([0.0, 0.5, 1.0])],
    }
    tokens: st.SearchStrategy[list[tuple[int, float]]] = st.just([])
    if operation in (Operation.ALLOWED_TOKENS, Operation.MIN_TOKENS, Operation.DRY):
        tokens = few.map(lambda ids: [(token, 0.0) for token in sorted(ids)])
    elif operation is Operation.BANNED_SEQUENCES:
        sequences = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1)
        tokens = sequences.map(lambda all_: [(t, n) for n, each in enumerate(all_) for t in each])
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
    others = draw.normal(0, 2, (3, VOCABULARY)).astype(np.float32)
    bench.kept.put(torch.arange(3), torch.from_numpy(others))
    known: list[Text] = []
    for slot, (steps, before, chosen) in enumerate(rows):
        bench.set(slot, steps, seed=slot)
        bench.feed(slot, before)
        for i, token in enumerate(chosen):
            bench.choose(slot, i, token)
        at = np.array([len(chosen)], np.uint32)
        coin = float(coins(np.array([slot], np.uint64), at)[0])
        text = Text(before, chosen, coin)
        text.mask = [None, [1, 2, 40], list(range(50))][slot % 3]
        text.others = [others[slot % 3].astype(np.float64), np.zeros(VOCABULARY)]
        known.append(text)
    found = bench.adjusted(
        torch.from_numpy(logits),
        [len(text.chosen) for text in known],
        [text.mask for text in known],
        [[slot % 3, -1] for slot in range(len(rows))],
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
    Op.NO_REPEAT_NGRAM: (lambda d: int(d.integers(1, 4)), G.NoRepeatNGramLogitsProcessor),
    Op.TEMPERATURE: (lambda d: d.uniform(0.3, 2.5), G.TemperatureLogitsWarper),
    Op.TOP_K: (lambda d: int(d.integers(1, VOCABULARY)), G.TopKLogitsWarper),
    Op.TOP_P: (lambda d: d.uniform(0.05, 0.99), G.TopPLogitsWarper),
    Op.MIN_P: (lambda d: d.uniform(0.01, 0.5), G.MinPLogitsWarper),
    Op.TYPICAL_P: (lambda d: d.uniform(0.1, 0.95), G.TypicalLogitsWarper),
    Op.EPSILON_CUTOFF: (lambda d: d.uniform(0.0005, 0.1), G.EpsilonLogitsWarper),
    Op.ETA_CUTOFF: (lambda d: d.uniform(0.0005, 0.1), G.EtaLogitsWarper),
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


def test_a_text_that_was_cut_back_has_forgotten_the_rest() -> None:
    """What was cut off is overwritten by place, so the history is that of the text."""
    bench = Bench()
    bench.set(0, [Step(Operation.NO_REPEAT_NGRAM, [2])])
    bench.feed(0, [1, 2])
    for i, token in enumerate([3, 1, 9]):
        bench.choose(0, i, token)
    for i, token in enumerate([5, 1]):
        bench.choose(0, i, token)
    bench.feed(0, [6, 1], chosen=2)
    bench.choose(0, 2, 8)
    bench.choose(0, 3, 1)
    found = bench.adjusted(torch.zeros(1, VOCABULARY), [4])
    assert found[0].isinf().nonzero().flatten().tolist() == [2, 6, 8]


def test_only_the_newest_tokens_are_remembered() -> None:
    bench = Bench()
    bench.set(0, [Step(Operation.NO_REPEAT_NGRAM, [1])])
    bench.feed(0, [7] + [3] * (HISTORY - 1))
    assert bench.adjusted(torch.zeros(1, VOCABULARY), [0])[0].isinf().nonzero().tolist() == [
        [3],
        [7],
    ]
    bench.choose(0, 0, 5)
    found = bench.adjusted(torch.zeros(1, VOCABULARY), [1])[0]
    assert found.isinf().nonzero().flatten().tolist() == [3, 5]
