"""Tool calls in three forms: what is learnt can be derived, and the asynchronous one is scheduled
right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import USER, asynchronous, errands
from examples.pie_tiny.corpus.sample import CALL, END, INTR, TRAP, Generator, Sample, Split
from examples.pie_tiny.corpus.tasks import Request, chain_letter
from examples.pie_tiny.corpus.words import HELD_OUT_NOUNS, HELD_OUT_VERBS, NOUNS, VERBS
from examples.pie_tiny.parsing import CallBlock, Parser, TrapBlock, parse_call

SEEDS = st.integers(0, 2**32)
SPLITS = st.builds(Split, st.booleans())
GENERATORS = st.sampled_from([sequential, parallel, asynchronous, errands])
INTERRUPT = re.compile(r"\[INTR\](.*?)\[HEAD\](.*?)\[END\]")


def request_of(sample: Sample) -> Request:
    request = sample.answer["request"]
    assert isinstance(request, Request)
    return request


def calls_of(sample: Sample) -> list[CallBlock]:
    parser = Parser()
    blocks = []
    for piece in sample.pieces:
        if piece.learned:
            blocks += parser.feed(piece.text.removesuffix(END)) + parser.finish()
    return [block for block in blocks if isinstance(block, CallBlock)]


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
            name = f"{chain_letter(number)}{step}" if call.answered else ""
            expected.append((name, parse_call(call.text(previous))))
            if call.failed:
                break
            previous = call.result
    made = [(block.identifier, block.call) for block in calls_of(sample)]
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
        for block in Parser().feed(piece.text.removesuffix(END)):
            if not isinstance(block, CallBlock):
                continue
            parameters = re.escape(", ".join(block.call.arguments))
            assert re.search(rf"\n{block.call.name}~\d\d\({parameters}\)", seen)
            assert all(str(value) in seen for value in block.call.arguments.values())


def replay(sample: Sample) -> Iterable[tuple[str, list[str]]]:
    """Every call or trap of an asynchronous sample, and the calls that were ready then, longest
    first.
    """
    request = request_of(sample)
    known = sample.answer["known"]
    assert isinstance(known, int)
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
            for block in Parser().feed(piece.text.removesuffix(END)):
                if isinstance(block, CallBlock):
                    yield block.identifier, ready()
                    begun[ord(block.identifier[0]) - ord("a")] += 1
                elif isinstance(block, TrapBlock):
                    assert begun != done
                    yield TRAP, ready()
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


@given(SEEDS, SPLITS)
def test_errands_are_listed_and_have_answers_where_they_are_needed(seed: int, split: Split) -> None:
    sample = errands(Random(seed), split)
    chains = request_of(sample).chains
    user = sample.prompt.partition("<|user|>\n")[2].partition(END)[0]
    needed = [
        line.startswith("- ") and "no answer needed." not in line for line in user.split("\n")
    ]
    assert needed == [chain[-1].answered for chain in chains]
    assert all(call.answered for chain in chains for call in chain[:-1])
    waiting: set[str] = set()  # identifiers whose answers have not come
    for piece in sample.pieces[1:]:
        waiting -= {name for name, _ in INTERRUPT.findall(piece.text)}
        for block in Parser().feed(piece.text.removesuffix(END)) if piece.learned else ():
            if isinstance(block, CallBlock):
                waiting |= {block.identifier} - {""}
            elif isinstance(block, TrapBlock):
                assert waiting
    assert not waiting
    told = re.findall(r"\b(\w): ", sample.pieces[-1].text.rpartition("Done.")[2])
    failed = [n for n, c in enumerate(chains) if any(call.failed for call in c[:-1])]
    assert told == [chain_letter(n) for n, answered in enumerate(needed) if answered or n in failed]


@pytest.mark.parametrize("generator", [sequential, parallel, asynchronous, errands])
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
