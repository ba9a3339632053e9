"""Arithmetic with steps: every line is true, and the lines lead to the answer."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from math import prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.arithmetic import arithmetic, kept_back, worked
from examples.pie_tiny.corpus.sample import Sample, Split

seeds = st.integers(0, 2**32)
splits = st.builds(Split, st.booleans())
EQUATION = re.compile(r"([\d+*-]+)=(\d+)")
HEAD = re.compile(r"\(?(\d+)([-+*])(\d+)\)?:$")


def operands_of(sample: Sample) -> list[int]:
    operands = sample.answer["operands"]
    assert isinstance(operands, list)
    return operands


def computed(terms: str) -> int:
    """A sum of signed terms or a product of two, without eval."""
    if "*" in terms:
        return prod(int(factor) for factor in terms.split("*"))
    return sum(int(term) for term in re.findall(r"[-+]?\d+", terms))


def expected(sample: Sample) -> int:
    terms = str(sample.answer["operator"]).join(map(str, operands_of(sample)))
    return computed(terms)


@given(seeds, splits)
def test_the_answer_is_the_value_of_the_prompt(seed: int, split: Split) -> None:
    sample = arithmetic(Random(seed), split)
    assert sample.kind == "arithmetic"
    assert sample.answer["value"] == expected(sample)
    assert sample.pieces[-1].text.endswith(f"\nAnswer: {expected(sample)}<|end|>")
    asked = [int(number) for number in re.findall(r"\d+", sample.prompt)]
    assert asked == operands_of(sample)
    assert len(sample.text) <= 350


@given(seeds, splits)
def test_every_step_is_true(seed: int, split: Split) -> None:
    *lines, _ = arithmetic(Random(seed), split).pieces[-1].text.splitlines()
    for line in lines:
        for terms, result in EQUATION.findall(line):
            assert computed(terms) == int(result), line
        if carried := re.search(r"=(\d+) carry (\d)", line):
            assert int(carried[1]) // 10 == int(carried[2])
        if borrowed := re.search(r": (\S+) borrow (\d)", line):
            assert (computed(borrowed[1]) < 0) == (borrowed[2] == "1")


@given(seeds, splits)
def test_each_column_adds_digits_before_those_found(seed: int, split: Split) -> None:
    *lines, _ = arithmetic(Random(seed), split).pieces[-1].text.splitlines()
    for above, line in pairwise(lines):
        found = line.partition(" so ")[2]
        if found and not line.startswith("ones"):
            before = above.partition(" so ")[2]
            assert found.endswith(before)
            assert len(found) > len(before)


@given(seeds, splits)
def test_the_last_column_holds_the_value_that_the_block_announces(seed: int, split: Split) -> None:
    lines = arithmetic(Random(seed), split).pieces[-1].text.splitlines()
    announced = None
    for line, below in pairwise(lines):
        if head := HEAD.search(line):
            announced = computed("".join(head.groups()))
        elif HEAD.search(below) or below.startswith("Answer"):
            assert int(line.partition(" so ")[2]) == announced


@given(seeds)
def test_training_never_works_on_a_pair_kept_back(seed: int) -> None:
    sample = arithmetic(Random(seed), Split())
    for a, b in re.findall(r"\b(\d\d)[-+*](\d\d)\b", sample.text):
        assert not (kept_back(int(a), int(b)) and int(a) >= 10 and int(b) >= 10)
    assert not kept_back(*operands_of(sample)[:2])


@given(seeds)
def test_held_out_pairs_of_two_digits_are_all_kept_back(seed: int) -> None:
    first, second, *_ = operands_of(arithmetic(Random(seed), Split(held_out=True)))
    assert kept_back(first, second) == (10 <= first <= 99 and 10 <= second <= 99)


def test_a_tenth_is_kept_back_and_no_pair_of_last_digits_wholly() -> None:
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    kept = [pair for pair in pairs if kept_back(*pair)]
    assert 0.09 < len(kept) / len(pairs) < 0.11
    assert all(kept_back(b, a) for a, b in kept)
    of_last_digits = Counter((a % 10, b % 10) for a, b in kept)
    assert max(of_last_digits.values()) < 81 / 4
    assert not any(kept_back(a, b) for a in range(10) for b in range(1000))


def test_half_the_samples_are_sums_and_differences_of_two_digits() -> None:
    random = Random(5)
    samples = [arithmetic(random, Split()) for _ in range(4000)]
    pairs = sum(
        sample.answer["operator"] in ("+", "-")
        and [len(str(number)) for number in operands_of(sample)] == [2, 2]
        for sample in samples
    )
    negative = sum(expected(sample) < 0 for sample in samples)
    assert 0.46 < pairs / len(samples) < 0.54
    assert 0 < negative / len(samples) < 0.03


@pytest.mark.parametrize(
    ("operator", "operands", "steps"),
    [
        ("+", (47, 85), "47+85:\nones: 7+5=12 carry 1 so 2\ntens: 4+8+1=13 so 132\n"),
        (
            "-",
            (47, 85),
            "-(85-47):\nones: 5-7 borrow 1, 15-7=8 so 8\ntens: 8-4-1 borrow 0, 8-4-1=3 so 38\n",
        ),
        ("*", (6, 47), "47*6:\nones: 7*6=42 carry 4 so 2\ntens: 4*6=24, 24+4=28 so 282\n"),
    ],
)
def test_layout(operator: str, operands: tuple[int, ...], steps: str) -> None:
    assert worked(operator, operands)[1] == steps
