"""Tool calls in three forms: what is learnt can be derived, and the asynchronous one is scheduled
right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import USER, asynchronous
from examples.pie_tiny.corpus.sample import CALL, END, INTR, TRAP, Generator, Sample, Split
from examples.pie_tiny.corpus.tasks import Request, chain_letter
from examples.pie_tiny.corpus.words import HELD_OUT_NOUNS, HELD_OUT_VERBS, NOUNS, VERBS

SEEDS = st.integers(0, 2**32)
SPLITS = st.builds(Split, st.booleans())
GENERATORS = st.sampled_from([sequential, parallel, asynchronous])
INTERRUPT = re.compile(r"\[INTR\](.*?)\[HEAD\](.*?)\[END\]")
BLOCK = re.compile(r"\[CALL\](\w+)\[HEAD\](.*?)\[END\]|\[TRAP\]\[END\]")


def request_of(sample: Sample) -> Request:
    assert isinstance(sample.request, Request)
    return sample.request


def read_call(text: str) -> tuple[str, dict[str, object]]:
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    assert not tree.args
    return tree.func.id, {str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}


@given(GENERATORS, SEEDS, SPLITS)
def test_only_what_the_model_writes_is_learnt(
    generator: Generator, seed: int, split: Split
) -> None:
    sample = generator(Random(seed), split)
    assert not sample.pieces[0].learned
    for piece in sample.pieces:
        assert (INTR if piece.learned else CALL) not in piece.text
        assert piece.learned or TRAP not in piece.text
    assert sample.pieces[-1].text.endswith(END)


@given(GENERATORS, SEEDS, SPLITS)
def test_every_call_is_made_once_unless_its_chain_failed(
    generator: Generator, seed: int, split: Split
) -> None:
    sample = generator(Random(seed), split)
    expected = []
    for number, chain in enumerate(request_of(sample).chains):
        previous = None
        for step, call in enumerate(chain, 1):
            name = f"{chain_letter(number)}{step}"
            expected.append((name, read_call(call.text(previous))))
            if call.failed:
                break
            previous = call.result
    learned = [piece.text for piece in sample.pieces if piece.learned]
    found = [(name, call) for text in learned for name, call in BLOCK.findall(text) if name]
    made = [(name, read_call(call)) for name, call in found]
    assert sorted(made, key=str) == sorted(expected, key=str)


@given(GENERATORS, SEEDS, SPLITS)
@example(sequential, 3711, Split(False))  # a made-up parameter was called `break`
def test_a_call_can_be_derived_from_what_stands_before_it(
    generator: Generator, seed: int, split: Split
) -> None:
    sample = generator(Random(seed), split)
    seen = ""
    for piece in sample.pieces:
        if not piece.learned:
            seen += piece.text
            continue
        for name, arguments in (read_call(call) for _, call in BLOCK.findall(piece.text) if call):
            parameters = re.escape(", ".join(arguments))
            assert re.search(rf"\n{name}~\d\d\({parameters}\)", seen)
            assert all(str(value) in seen for value in arguments.values())


def replay(sample: Sample) -> Iterable[tuple[str, list[str]]]:
    """Every call or trap of an asynchronous sample, and the calls that were ready then, longest
    first.
    """
    request = request_of(sample)
    known = len(request.chains) - sample.text.count("[INTR]user[HEAD]also ")
    done = [0] * len(request.chains)  # calls whose result has come
    begun = [0] * len(request.chains)
    dead: set[int] = set()

    def ready() -> list[str]:
        free = [
            (-chain[begun[n]].function.estimate, n)
            for n, chain in enumerate(request.chains[:known])
            if begun[n] == done[n] and begun[n] < len(chain) and n not in dead
        ]
        return [f"{chain_letter(n)}{begun[n] + 1}" for _, n in sorted(free)]

    for piece in sample.pieces[1:]:
        if piece.learned:
            for name, _ in BLOCK.findall(piece.text):
                assert name or begun != done
                yield name or TRAP, ready()
                if name:
                    begun[ord(name[0]) - ord("a")] += 1
            continue
        assert INTERRUPT.sub("", piece.text) == ""
        for identifier, value in INTERRUPT.findall(piece.text):
            if identifier == USER:
                assert value.startswith("also ")
                known += 1
                continue
            number = ord(identifier[0]) - ord("a")
            done[number] += 1
            assert identifier[1:] == str(done[number]) == str(begun[number])
            call = request.chains[number][done[number] - 1]
            assert value == call.written_result
            if call.failed:
                dead.add(number)
    assert begun == done
    assert not ready()
    assert known == len(request.chains)


@given(SEEDS, SPLITS)
def test_the_longest_ready_call_goes_first_and_traps_wait_for_nothing_less(
    seed: int, split: Split
) -> None:
    for written, ready in replay(asynchronous(Random(seed), split)):
        assert written == (ready[0] if ready else TRAP)


@pytest.mark.parametrize("generator", [sequential, parallel, asynchronous])
def test_held_out_functions_are_not_in_training(generator: Generator) -> None:
    words = set(HELD_OUT_VERBS) | set(HELD_OUT_NOUNS)
    assert not words & (set(VERBS) | set(NOUNS))
    names: dict[bool, set[str]] = {False: set(), True: set()}
    for held_out in names:
        for seed in range(1500):
            request = request_of(generator(Random(seed), Split(held_out)))
            names[held_out] |= {function.name for function in request.functions}
    assert not names[False] & names[True]
    assert not any(words & set(name.split("_")) for name in names[False])
