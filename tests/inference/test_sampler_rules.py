"""What the functions of `inferlet.samplers` do at the worker, beside the definitions written out
for one row, and beside `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.model_rig import ints
from support.programs_read import bound_by
from transformers import LogitsProcessorList, generation

from inferlet import Sampler, device, samplers
from inferlet.device import ProgramSampler
from pie_inference.sampling.noise import coins
from pie_inference.sampling.pool import Choices, SamplerPool
from pie_inference.sampling.remembered import SavedLogits
from pie_py.device_programs.bound import Bound
from pie_py.device_programs.compiled import is_compiled

VOCABULARY = 64
CPU = torch.device("cpu")
Row = NDArray[np.float64]
WORD = 2**64 - 1


def chances(row: Row) -> Row:
    """The probabilities of logits."""
    weights = np.exp(row - row.max())
    found: Row = weights / weights.sum()
    return found


def defined(row: Row) -> bool:
    """Whether there is a choice: not of nothing, nor of what is no number, as zero times minus
    infinity (guidance by 0 of a token that is ruled out).
    """
    return bool(np.isfinite(row).any() and not np.isnan(row).any())


def keep(row: Row, kept: list[int]) -> Row:
    """The logits with all other tokens ruled out."""
    out = np.full_like(row, -np.inf)
    out[kept] = row[kept]
    return out


def ranked(row: Row) -> list[int]:
    """Tokens from the likeliest on; of equal ones the first."""
    return sorted(range(len(row)), key=lambda t: (-row[t], t))


def hashed(start: int, number: int) -> int:
    """The `number`-th word of SplitMix64 from a start."""
    word = (start + (number + 1) * 0x9E3779B97F4A7C15) & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


class Text:
    """One row: what is known of it."""

    def __init__(self, given: list[int], chosen: list[int], coin: float, other: Row) -> None:
        self.given, self.chosen, self.coin, self.other = given, chosen, coin, other
        self.tokens = given + chosen


def matched(tokens: list[int], place: int, breaks: set[int]) -> int:
    length = 0
    while length < place and tokens[place - 1 - length] == tokens[-1 - length]:
        if tokens[-1 - length] in breaks:
            break
        length += 1
    return length


def repetition_penalty(row: Row, text: Text, factor: float) -> Row:
    for token in set(text.tokens):
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    return row


def presence_penalty(row: Row, text: Text, penalty: float) -> Row:
    row[list(set(text.chosen))] -= penalty
    return row


def frequency_penalty(row: Row, text: Text, penalty: float) -> Row:
    for token in text.chosen:
        row[token] -= penalty
    return row


def no_repeat_ngram(row: Row, text: Text, size: int) -> Row:
    last = text.tokens[len(text.tokens) - size + 1 :]
    for i in range(size - 1, len(text.tokens)):
        if text.tokens[i - size + 1 : i] == last:
            row[text.tokens[i]] = -np.inf
    return row


def banned_sequences(row: Row, text: Text, sequences: list[list[int]]) -> Row:
    for *before, last_one in sequences:
        if text.tokens[len(text.tokens) - len(before) :] == before:
            row[last_one] = -np.inf
    return row


def min_tokens(row: Row, text: Text, count: int, ends: list[int]) -> Row:
    row[ends if len(text.chosen) < count else []] = -np.inf
    return row


def dry(
    row: Row, text: Text, multiplier: float, base: float, allowed: int, breakers: list[int]
) -> Row:
    taken: dict[int, float] = {}
    for i in range(1, len(text.tokens)):
        length = matched(text.tokens, i, set(breakers))
        if length and length >= allowed and text.tokens[i] not in breakers:
            penalty = multiplier * base ** (length - allowed)
            taken[text.tokens[i]] = max(penalty, taken.get(text.tokens[i], 0))
    for token, penalty in taken.items():
        row[token] -= penalty
    return row


def watermark(row: Row, text: Text, bias: float, share: float, key: int) -> Row:
    if text.tokens:
        start = hashed(key, text.tokens[-1])
        for token in range(len(row)):
            row[token] += bias * (hashed(start, token) >> 40 < share * 2**24)
    return row


def logit_bias(row: Row, text: Text, tokens: list[int], values: list[float]) -> Row:
    for token, value in zip(tokens, values, strict=True):
        row[token] += value
    return row


def top_p(row: Row, text: Text, share: float) -> Row:
    order, p = ranked(row), chances(row)
    count = next(i for i in range(1, 65) if p[order[:i]].sum() >= share - 1e-12 or i == 64)
    return keep(row, order[:count])


def min_p(row: Row, text: Text, share: float) -> Row:
    return keep(row, [t for t in range(len(row)) if row[t] >= row.max() + min(0, math.log(share))])


def entropy_of(p: Row) -> float:
    return -sum(float(q) * math.log(q) for q in p if q > 0)


def epsilon_cutoff(row: Row, text: Text, bar: float) -> Row:
    p = chances(row)
    return keep(row, [t for t in range(len(row)) if p[t] >= bar or row[t] == row.max()])


def eta_cutoff(row: Row, text: Text, epsilon: float) -> Row:
    return epsilon_cutoff(
        row, text, min(epsilon, math.sqrt(epsilon) * math.exp(-entropy_of(chances(row))))
    )


def top_n_sigma(row: Row, text: Text, n: float) -> Row:
    there = row[np.isfinite(row)]
    return keep(row, np.flatnonzero(row >= row.max() - n * there.std()).tolist())


def typical_p(row: Row, text: Text, mass: float) -> Row:
    p = chances(row)
    with np.errstate(divide="ignore"):
        far = np.abs(-np.log(p) - entropy_of(p))
    order, count = sorted(range(len(row)), key=lambda t: (far[t], t)), 1
    while count < len(row) and p[order[:count]].sum() < mass:
        count += 1
    return keep(row, [t for t in range(len(row)) if far[t] <= far[order[count - 1]]])


def xtc(row: Row, text: Text, threshold: float, probability: float) -> Row:
    if text.coin < probability:
        p = chances(row)
        likely = [t for t in ranked(row) if p[t] >= threshold and p[t] > 0]
        row[likely[:-1]] = -np.inf
    return row


def logs(row: Row) -> Row:
    with np.errstate(divide="ignore"):
        return np.log(chances(row))


def guidance(row: Row, text: Text, scale: float) -> Row:
    return logs(text.other) + scale * (logs(row) - logs(text.other))


def contrastive(row: Row, text: Text, share: float) -> Row:
    return min_p(row, text, share) - logs(text.other)


def context_aware(row: Row, text: Text, alpha: float) -> Row:
    return (1 + alpha) * row - alpha * text.other


@dataclass(frozen=True)
class Case:
    """A function of `samplers`, its definition, and how its arguments are drawn."""

    plain: Callable[..., Row]
    arguments: st.SearchStrategy[tuple[Any, ...]]
    of_state: frozenset[int] = frozenset()  # which arguments are lists of the state
    beside: bool = False  # whether the first one is a context beside


IDS = st.integers(0, VOCABULARY - 1)
FEW = st.sets(IDS, min_size=1, max_size=9).map(sorted)
SHARE, BAR = st.sampled_from([0.05, 0.3, 0.75, 1.0]), st.sampled_from([0.001, 0.02, 0.9])
AMOUNT = st.sampled_from([0.0, 0.5, 2.0])
SEQUENCES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=4)
BIASES = st.dictionaries(IDS, st.floats(-4, 4, width=32), min_size=1, max_size=4)
CASES = {
    "logit_bias": Case(
        logit_bias, BIASES.map(lambda b: (list(b), list(b.values()))), frozenset((0, 1))
    ),
    "allowed_tokens": Case(lambda row, _, kept: keep(row, kept), st.tuples(FEW), frozenset((0,))),
    "repetition_penalty": Case(repetition_penalty, st.tuples(st.sampled_from([0.5, 1.3]))),
    "presence_penalty": Case(presence_penalty, st.tuples(AMOUNT)),
    "frequency_penalty": Case(frequency_penalty, st.tuples(AMOUNT)),
    "no_repeat_ngram": Case(no_repeat_ngram, st.tuples(st.integers(1, 4))),
    "banned_sequences": Case(banned_sequences, st.tuples(SEQUENCES), frozenset((0,))),
    "min_tokens": Case(min_tokens, st.tuples(st.integers(1, 15), FEW), frozenset((1,))),
    "dry": Case(
        dry, st.tuples(AMOUNT, st.sampled_from([1.5, 2.0]), st.integers(0, 3), FEW), frozenset((3,))
    ),
    "watermark": Case(watermark, st.tuples(AMOUNT, SHARE, st.integers(0, 2**48 - 1))),
    "top_k": Case(
        lambda row, _, k: keep(row, ranked(row)[:k]), st.tuples(st.integers(1, VOCABULARY))
    ),
    "top_p": Case(top_p, st.tuples(SHARE)),
    "min_p": Case(min_p, st.tuples(SHARE)),
    "top_n_sigma": Case(top_n_sigma, st.tuples(st.sampled_from([0.0, 0.3, 1.7]))),
    "typical_p": Case(typical_p, st.tuples(SHARE)),
    "epsilon_cutoff": Case(epsilon_cutoff, st.tuples(BAR)),
    "eta_cutoff": Case(eta_cutoff, st.tuples(BAR)),
    "xtc": Case(
        xtc, st.tuples(st.sampled_from([0.0, 0.02, 0.1]), st.sampled_from([0.0, 0.5, 1.0]))
    ),
    "guidance": Case(guidance, st.tuples(st.sampled_from([0.0, 1.0, 2.5])), beside=True),
    "contrastive": Case(contrastive, st.tuples(SHARE), beside=True),
    "context_aware": Case(context_aware, st.tuples(AMOUNT), beside=True),
}


def program_of(steps: list[tuple[str, tuple[Any, ...]]]) -> ProgramSampler:
    """A program that keeps in its state what some functions, one after the other, make of logits.

    Each other one's numbers are of the state, too.
    """
    given: dict[str, Any] = {"seen": [0.0] * VOCABULARY}
    for i, (name, values) in enumerate(steps):
        for j in CASES[name].of_state:
            value = values[j]
            given[f"of{i}_{j}"] = samplers.padded(value) if name == "banned_sequences" else value

    text = "def rule(logits, state):\n"
    for i, (name, values) in enumerate(steps):
        arguments = [
            f"state.of{i}_{j}" if j in CASES[name].of_state else repr(value)
            for j, value in enumerate(values)
        ]
        if CASES[name].beside:
            arguments.insert(0, "beside(0)")
        text += f"    logits = {name}({', '.join(['logits', *arguments])})\n"
    text += f"    state.seen = logits[:{VOCABULARY}]\n    return logits.argmax()\n"
    return device.program(text)(**given)


def bound(sampler: ProgramSampler | Sampler) -> Bound:
    return bound_by(sampler, VOCABULARY)


class Bench:
    """Samplers of a pool, one after the other in slots and rows."""

    def __init__(self) -> None:
        self.pool = SamplerPool(VOCABULARY, CPU, 16)
        self.kept = SavedLogits(VOCABULARY, CPU)

    def feed(self, slot: int, tokens: list[int], chosen: int = 0) -> None:
        """Gives a sampler tokens, of which it has chosen so many before."""
        count = len(tokens)
        places = np.arange(chosen, chosen + count)
        left = np.arange(count)[::-1]
        self.pool.feed(
            np.full(count, slot, np.int32), ints(tokens), np.zeros(count, np.bool_), places, left
        )

    def choose(self, slot: int, step: int, token: int) -> None:
        """Notes what a sampler has chosen."""
        self.pool.note(ints([slot]), np.array([step], np.uint32), torch.tensor([token]))

    def set(self, slot: int, sampler: ProgramSampler) -> None:
        """Makes a sampler whose seed is its slot."""
        seeds = np.array([[slot, 0]], np.uint32)
        self.pool.set(ints([slot]), seeds, ints([slot]), [bound(sampler)])

    def seen(self, logits: torch.Tensor, steps: list[int]) -> list[Row]:
        """What the programs of the first slots make of logits."""
        count = len(logits)
        choices = Choices(
            ints(range(count)),
            np.array(steps, np.uint32),
            np.array([[slot % 3, -1] for slot in range(count)], np.int32),
            self.kept,
        )
        self.pool.choose(choices, logits)
        found = [self.pool.device_programs.state(slot, at + 1) for slot, at in enumerate(steps)]
        return [values[0].double().numpy() for values in found]


@st.composite
def steps_of(draw: st.DrawFn) -> list[tuple[str, tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(list(CASES)), max_size=6, unique=True))
    return [(name, draw(CASES[name].arguments)) for name in names]


texts = st.lists(st.integers(0, 5), max_size=14)
SEEDS = st.integers(0, 2**32 - 1)


Steps = list[tuple[str, tuple[Any, ...]]]


@pytest.mark.parametrize("name", CASES)
def test_each_rule_alone(name: str) -> None:
    steps = CASES[name].arguments.map(lambda values: [(name, values)])
    rows = st.lists(st.tuples(steps, texts, texts), min_size=2, max_size=3)
    settings(max_examples=4)(given(rows, SEEDS)(follows_definitions))()


@given(st.lists(st.tuples(steps_of(), texts, texts), min_size=1, max_size=3), SEEDS)
@settings(max_examples=60)
def test_any_rules_in_any_order(rows: list[tuple[Steps, list[int], list[int]]], seed: int) -> None:
    follows_definitions(rows, seed)


def follows_definitions(rows: list[tuple[Steps, list[int], list[int]]], seed: int) -> None:
    """Rules, one after the other, make of random logits what their definitions make of them."""
    bench, draw = Bench(), np.random.default_rng(seed)
    logits = draw.normal(0, 2, (len(rows), VOCABULARY)).astype(np.float32)
    others = draw.normal(0, 2, (3, VOCABULARY)).astype(np.float32)
    bench.kept.put(torch.arange(3), torch.from_numpy(others))
    known: list[Text] = []
    for slot, (steps, before, chosen) in enumerate(rows):
        bench.set(slot, program_of(steps))
        bench.feed(slot, before)
        for i, token in enumerate(chosen):
            bench.choose(slot, i, token)
        at = np.array([len(chosen)], np.uint32)
        coin = float(coins(np.array([slot], np.uint64), at)[0])
        known.append(Text(before, chosen, coin, others[slot % 3].astype(np.float64)))
    found = bench.seen(torch.from_numpy(logits), [len(text.chosen) for text in known])
    for slot, (steps, _, _) in enumerate(rows):
        wanted = logits[slot].astype(np.float64)
        for name, values in steps:
            if not defined(wanted):
                break
            wanted = CASES[name].plain(wanted.copy(), known[slot], *values)
        got = found[slot]
        if not defined(wanted):
            continue
        edge = np.isfinite(wanted) != np.isfinite(got)
        assert not edge.any(), (steps, np.flatnonzero(edge), wanted[edge], got[edge])
        both = np.isfinite(wanted)
        np.testing.assert_allclose(got[both], wanted[both], atol=2e-3, rtol=1e-3)


G = generation
# Of each field of `Sampler`: how a number is drawn, and what transformers calls it.
FIELDS: dict[str, tuple[Any, Any]] = {
    "logit_bias": (lambda d: round(d.uniform(-4, 4), 2), None),
    "repetition_penalty": (lambda d: d.uniform(0.6, 1.8), G.RepetitionPenaltyLogitsProcessor),
    "no_repeat_ngram_size": (lambda d: int(d.integers(1, 4)), G.NoRepeatNGramLogitsProcessor),
    "temperature": (lambda d: d.uniform(0.3, 2.5), G.TemperatureLogitsWarper),
    "top_k": (lambda d: int(d.integers(1, VOCABULARY)), G.TopKLogitsWarper),
    "top_p": (lambda d: d.uniform(0.05, 0.99), G.TopPLogitsWarper),
    "min_p": (lambda d: d.uniform(0.01, 0.5), G.MinPLogitsWarper),
    "typical_p": (lambda d: d.uniform(0.1, 0.95), G.TypicalLogitsWarper),
    "epsilon_cutoff": (lambda d: d.uniform(0.0005, 0.1), G.EpsilonLogitsWarper),
    "eta_cutoff": (lambda d: d.uniform(0.0005, 0.1), G.EtaLogitsWarper),
}


def test_sets_of_fields_are_those_of_transformers() -> None:
    """The token that `Sampler` draws, by a program or as the worker itself chooses, is that
    of the race among what `transformers` leaves.
    """
    draw, programs = np.random.default_rng(0), 0
    for _ in range(50):
        bench = Bench()
        chosen = set(draw.choice(list(FIELDS), draw.integers(1, 6), replace=False))
        tokens = draw.integers(0, 6, draw.integers(1, 12)).tolist()
        logits = torch.from_numpy(draw.normal(0, 2.5, (1, VOCABULARY)).astype(np.float32))
        fields: dict[str, Any] = {}
        theirs = LogitsProcessorList()
        for name in (one for one in FIELDS if one in chosen):
            value = FIELDS[name][0](draw)
            if name == "logit_bias":
                fields[name] = {3: value, 9: -value}
                theirs.append(G.SequenceBiasLogitsProcessor({(3,): value, (9,): -value}))
            else:
                fields[name] = value
                theirs.append(FIELDS[name][1](value))
        sampler = Sampler(**fields)
        programs += not is_compiled(bound(sampler).program)
        kept = theirs(torch.tensor([tokens]), logits.clone())
        for seed in range(4):
            assert drawn(bench, sampler, tokens, logits, seed) == drawn(
                bench, RACE, tokens, kept, seed
            ), fields
    assert 30 < programs < 49


RACE = device.program(lambda logits: device.draw(logits))()


def drawn(
    bench: Bench,
    sampler: ProgramSampler | Sampler,
    tokens: list[int],
    logits: torch.Tensor,
    seed: int,
) -> int:
    """The token that a sampler chooses of logits `[1, vocabulary]`."""
    pool, slot, first = bench.pool, ints([0]), np.zeros(1, np.uint32)
    pool.set(slot, np.array([[seed, 0]], np.uint32), slot, [bound(sampler)])
    bench.feed(0, tokens)
    choices = Choices(slot, first, np.zeros((0, 2), np.int32), bench.kept)
    return int(pool.choose(choices, logits)[0])


def test_a_text_that_was_cut_back_has_forgotten_the_rest() -> None:
    """What was cut off is overwritten by place, so the history is that of the text."""
    bench = Bench()
    bench.set(0, program_of([("no_repeat_ngram", (2,))]))
    bench.feed(0, [1, 2])
    for i, token in enumerate([3, 1, 9]):
        bench.choose(0, i, token)
    for i, token in enumerate([5, 1]):
        bench.choose(0, i, token)
    bench.feed(0, [6, 1], chosen=2)
    bench.choose(0, 2, 8)
    bench.choose(0, 3, 1)
    [found] = bench.seen(torch.zeros(1, VOCABULARY), [4])
    assert np.flatnonzero(np.isinf(found)).tolist() == [2, 6, 8]


def test_only_the_newest_tokens_are_remembered() -> None:
    bench = Bench()
    bench.set(0, program_of([("no_repeat_ngram", (1, 4096))]))
    bench.feed(0, [7] + [3] * 4095)
    [found] = bench.seen(torch.zeros(1, VOCABULARY), [0])
    assert np.flatnonzero(np.isinf(found)).tolist() == [3, 7]
    bench.choose(0, 0, 5)
    [found] = bench.seen(torch.zeros(1, VOCABULARY), [1])
    assert np.flatnonzero(np.isinf(found)).tolist() == [3, 5]
