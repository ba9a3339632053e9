"""Episodes, played by oracles: what is right comes out right, what is wrong for the right
reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.call_episodes import Asynchronous, Synchronous
from examples.pie_tiny.corpus.arithmetic import arithmetic
from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import asynchronous, errands, simulate
from examples.pie_tiny.corpus.functions import Function
from examples.pie_tiny.corpus.react import react
from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.tasks import RESULT, Call, Request
from examples.pie_tiny.episodes import Plain, React
from examples.pie_tiny.ledger import Problem
from examples.pie_tiny.parsing import Violation
from examples.pie_tiny.tests.oracles import Change, Executor, once, recite, vocabulary, write

seeds = st.integers(0, 2**32)
held_out = Split(held_out=True)

# Estimates of 10 s and more: here every byte is a token, and costs up to 30 ms.
FETCH = Function("fetch_mail", ("day",), 1000)
SEND = Function("send_note", ("text",), 9000)
BOIL = Function("boil_soup", (), 5000)
REQUEST = Request(
    (FETCH, SEND, BOIL),
    ((Call(FETCH, (3,), "owl"), Call(SEND, (RESULT,), 7)), (Call(BOIL, (), "red"),)),
)
"""Two chains: fetch, then send what was fetched; and boil, which takes longer than fetching."""


def executor(sample: Sample, **changes: object) -> Executor:
    request, known = sample.answer["request"], sample.answer["known"]
    assert isinstance(request, Request)
    assert isinstance(known, int)
    return Executor(request, known, **changes)  # type: ignore[arg-type]


def play(change: Change = lambda text: text, **changes: object) -> Asynchronous:
    """An episode of `REQUEST` in which the oracle's writing is changed."""
    sample = simulate(Random(1), REQUEST, 0)
    episode = Asynchronous(vocabulary(), sample, Random(2))
    executor(sample, change=change, **changes).play(episode)
    return episode


def turns(*replies: str, mode: Callable[[Random, Split], Sample] = parallel) -> Synchronous:
    """A synchronous episode of `REQUEST` with these replies."""
    made = mode(Random(3), held_out)
    sample = Sample(made.kind, made.pieces, {"request": REQUEST, "mode": made.answer["mode"]})
    episode = Synchronous(vocabulary(), sample)
    for reply in replies:
        write(episode, reply + "<|end|>")
    assert episode.done
    return episode


def test_endless_episode_is_ended() -> None:
    episode = Plain(vocabulary(), arithmetic(Random(1), held_out))
    write(episode, "1" * 2000)
    assert episode.done
    assert not episode.whole
    assert len(episode.text) < 500


def test_react_observes_nothing_after_another_action() -> None:
    episode = React(vocabulary(), react(Random(1), held_out))
    assert write(episode, "Thought: hm\nAction: dance()\n") == "Observation: nothing found\n"


@given(seeds, st.sampled_from([sequential, parallel]), st.booleans())
def test_synchronous_sample_is_all_right(
    seed: int, form: Callable[[Random, Split], Sample], known_names: bool
) -> None:
    episode = Synchronous(vocabulary(), form(Random(seed), Split(not known_names)))
    recite(episode)
    assert episode.all_right
    assert episode.closed_right
    assert episode.turns_right
    assert episode.ledger.right == len(episode.ledger.expected)


@given(st.sampled_from([asynchronous, errands]), seeds, seeds)
def test_asynchronous_sample_is_all_right_by_any_clock(
    form: Callable[[Random, Split], Sample], seed: int, clock: int
) -> None:
    sample = form(Random(seed), held_out)
    episode = Asynchronous(vocabulary(), sample, Random(clock))
    executor(sample).play(episode)
    assert episode.all_right
    assert episode.closed_right
    assert episode.ledger.right == len(episode.ledger.expected)
    assert episode.ledger.longest == episode.ledger.decisions
    assert episode.unneeded_traps == 0
    assert not episode.trap_missing


def test_the_clock_orders_interrupts_by_arrival() -> None:
    text = play().text
    # Boiling is called first, being longer, but fetching returns first.
    assert re.findall(r"\[(CALL|INTR)\](\w+)", text) == [
        ("CALL", "b1"),
        ("CALL", "a1"),
        ("INTR", "a1"),
        ("CALL", "a2"),
        ("INTR", "b1"),
        ("INTR", "a2"),
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (once("day=3", "day=4"), Problem.ARGUMENTS),
        (once("day=3", 'day="3"'), Problem.ARGUMENTS),
        (once("day=3", "days=3"), Problem.ARGUMENTS),
        (once("fetch_mail", "fetch_male"), Problem.FUNCTION),
        (once("[TRAP][END]", "[CALL]x[HEAD]boil_soup()[END]"), Problem.AGAIN),
        (once("a1[HEAD]fetch_mail(day=3)", 'x[HEAD]send_note(text="owl")'), Problem.ORDER),
        (
            once("day=3)[END]", 'day=3)[END][CALL]x[HEAD]send_note(text="owl")[END]'),
            Problem.EARLY,
        ),
        (once("[CALL]b1[HEAD]boil_soup()[END]", "[TRAP][END]"), Problem.IDLE_TRAP),
        (once("[CALL]b1[HEAD]boil_soup()[END]", "Done.<|end|>"), Problem.MISSING),
        (once("[TRAP][END]", "Done.<|end|>"), Problem.MISSING_TRAP),
        (once("boil", "b" * 2000), Problem.CUT),
    ],
)
def test_what_is_wrong_has_its_reason(change: Change, problem: Problem) -> None:
    episode = play(change)
    assert episode.valid == (problem != Problem.CUT)
    assert episode.ledger.problems[0] == problem
    assert not episode.all_right


@pytest.mark.parametrize(
    ("old", "new"), [("[CALL]boil", "[CALL]b1[HEAD]boil"), ("[CALL]a2[HEAD]", "[CALL]")]
)
def test_an_answer_that_is_not_needed_is_not_asked_for(old: str, new: str) -> None:
    fetching, (boiling,) = REQUEST.chains
    chains = (fetching, (replace(boiling, answered=False),))
    sample = simulate(Random(1), replace(REQUEST, chains=chains), 0)
    for change, problem in ((once(old, new), [Problem.ANSWER]), (once("", ""), [])):
        episode = Asynchronous(vocabulary(), sample, Random(2))
        executor(sample, change=change).play(episode)
        assert episode.ledger.problems[:1] == problem


def test_closing_before_the_last_result_is_a_missing_trap() -> None:
    episode = play(waits=False)
    assert Problem.MISSING_TRAP in episode.ledger.problems
    assert episode.trap_missing
    assert episode.valid
    assert not episode.all_right


def test_wrong_closing_words_are_told_apart() -> None:
    episode = play(once("Done.", "Over."))
    assert episode.all_right
    assert not episode.closed_right


def test_unneeded_trap_is_counted_and_no_mistake() -> None:
    episode = play(once("boil_soup()[END]", "boil_soup()[END][TRAP][END]"))
    assert episode.unneeded_traps == 1
    assert episode.traps == episode.text.count("[TRAP]")
    assert episode.all_right


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ('[INTR]b1[HEAD]"red"[END]', Violation.INTERRUPT),
        ("<|user|>", Violation.CHAT),
        ("[CALL]b1[HEAD]boil_soup([END]", Violation.CALL),
        ("[CALL]b1[HEAD]boil_soup()<|end|>", Violation.UNCLOSED),
    ],
)
def test_a_violation_ends_the_episode(text: str, violation: Violation) -> None:
    episode = play(once("[CALL]b1[HEAD]boil_soup()[END]", text))
    assert episode.violation == violation
    assert not episode.valid
    assert not episode.all_right


FIRST = "[CALL]a1[HEAD]fetch_mail(day=3)[END]"
SECOND = '[CALL]a2[HEAD]send_note(text="owl")[END]'
OTHER = "[CALL]b1[HEAD]boil_soup()[END]"
DONE = 'Done. a: 7, b: "red".'


def test_calls_per_turn_are_counted() -> None:
    assert not turns(FIRST, OTHER, SECOND, DONE).turns_right
    episode = turns(FIRST + OTHER, SECOND, DONE, mode=sequential)
    assert episode.all_right
    assert not episode.turns_right


@pytest.mark.parametrize(
    ("replies", "problem"),
    [
        ((FIRST + SECOND, OTHER, DONE), Problem.EARLY),
        ((SECOND, FIRST, OTHER, DONE), Problem.ORDER),
        ((FIRST, SECOND, DONE), Problem.MISSING),
        ((FIRST + OTHER + OTHER.replace("b1", "c1"), SECOND, DONE), Problem.AGAIN),
        ((FIRST + OTHER, SECOND.replace("owl", "fox"), DONE), Problem.ARGUMENTS),
        ((FIRST + "[TRAP][END]" + OTHER, SECOND, DONE), Problem.SYNCHRONOUS_TRAP),
        (("[CALL]x[HEAD]dance()[END]" + FIRST + OTHER, SECOND, DONE), Problem.FUNCTION),
        ((FIRST + OTHER, SECOND, "[CALL]x[HEAD]fetch_mail(day=9)[END]", DONE), Problem.UNWANTED),
    ],
)
def test_synchronous_mistakes_have_their_reasons(
    replies: tuple[str, ...], problem: Problem
) -> None:
    episode = turns(*replies)
    assert episode.valid
    assert episode.ledger.problems[0] == problem


def test_calls_after_an_error_are_not_asked_for() -> None:
    failing = Request(
        (FETCH, SEND), ((Call(FETCH, (3,), "error: timeout", True), Call(SEND, ("x",), 7)),)
    )
    sample = simulate(Random(1), failing, 0)
    episode = Asynchronous(vocabulary(), sample, Random(2))
    executor(sample).play(episode)
    assert episode.all_right
    assert episode.said == "Done. a: error: timeout."
    episode = Asynchronous(vocabulary(), sample, Random(2))
    change = once("Done", '[CALL]a2[HEAD]send_note(text="x")[END]Done')
    executor(sample, change=change).play(episode)
    assert episode.ledger.problems[0] == Problem.UNWANTED
