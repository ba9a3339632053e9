"""Arithmetic with steps: every line is true, and the lines lead to the answer."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.arithmetic import arithmetic, kept_back
from examples.pie_tiny.corpus.sample import Sample, Split

seeds = st.integers(0, 2**32)
splits = st.builds(Split, st.booleans())
EQUATION = re.compile(r"([\d+*-]+)=(\d+)")
HEAD = re.compile(r"\(?(\d+)([-+*])(\d+)\)?:$")


def operands_of(sample: Sample) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", sample.prompt)]


def computed(terms: str) -> int:
    """A sum of signed terms or a product of two, without eval."""
    if "*" in terms:
        return prod(int(factor) for factor in terms.split("*"))
    return sum(int(term) for term in re.findall(r"[-+]?\d+", terms))


def expected(sample: Sample) -> int:
    asked = sample.prompt.partition("<|user|>\n")[2]
    for word, sign in {" plus ": "+", " minus ": "-", " times ": "*"}.items():
        asked = asked.replace(word, sign)
    found = re.search(r"\d+(?: ?[-+*] ?\d+)+", asked)
    assert found
    return computed(found[0].replace(" ", ""))


@given(seeds, splits)
def test_the_answer_is_the_value_of_the_prompt(seed: int, split: Split) -> None:
    sample = arithmetic(Random(seed), split)
    assert sample.kind == "arithmetic"
    assert sample.pieces[-1].text.endswith(f"\nAnswer: {expected(sample)}<|end|>")
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
