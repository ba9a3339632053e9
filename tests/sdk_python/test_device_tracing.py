"""Device programs while they are recorded: canonical text, mistakes at their lines, and meaning."""

from __future__ import annotations

import json
import math
import random
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.device_reference import Row, run
from support.device_texts import EVERY_STEP, TEXTS

from inferlet import device, samplers, watermark
from inferlet.device import Mistake, State, Tensor
from pie_py.device_programs.program import read_program

VOCABULARY = 120


@device.program
def greedy(logits: Tensor) -> Tensor:
    return logits.argmax()


@device.program
def drifting(logits: Tensor, state: State) -> Tensor:
    state.bias = state.bias * 0.5 + 1.0
    return device.where(logits > state.bias, logits, -math.inf).argmax()


def row(seed: int = 1, **known: Any) -> Row:
    chance = random.Random(seed)
    return Row([chance.gauss(0, 3) for _ in range(VOCABULARY)], seed=seed, **known)


def chosen(rule: Callable[..., Tensor], of: Row, **given: Any) -> int:
    """What the reference chooses by a rule."""
    sampler = device.program(rule)(**given)
    program = read_program(sampler.text)
    program.check_fits(VOCABULARY)
    return run(program, of, given)[0]


# Recording


def test_the_text_is_canonical_and_has_what_is_needed_once() -> None:
    def rule(logits: Tensor) -> Tensor:
        unused = logits.exp()
        assert unused.shape == (device.VOCABULARY,)
        return (logits * 2.0 + logits * 2.0).argmax()

    text = device.program(rule)().text
    assert [node[0] for node in json.loads(text)["nodes"]] == [
        *("logits", "constant", "mul", "add", "argmax")
    ]
    assert read_program(text).text == text


def test_a_function_is_called_once_for_each_kind_of_state() -> None:
    calls = []

    @device.program
    def rule(logits: Tensor, state: State) -> Tensor:
        calls.append(state.x.type)
        return logits.argmax()

    texts = [rule(x=x).text for x in (1.0, 2.0, 1, [1.0, 2.0], [3, 4.5])]
    assert len(calls) == 3
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4]


def test_state_is_there_at_the_next_token() -> None:
    program = read_program(drifting(bias=0.0).text)
    state: dict[str, Any] = {"bias": 0.0}
    for wanted in (1.0, 1.5, 1.75):
        _, state = run(program, row(), state)
        assert state == {"bias": wanted}


def test_a_list_of_the_state_keeps_a_number_of_each_token() -> None:
    @device.program
    def noting(logits: Tensor, state: State) -> Tensor:
        state.seen = state.seen.with_at(device.step(), logits.max() * state.seen.sum().exp())
        return logits.argmax()

    program, state = read_program(noting(seen=[0.0] * 3).text), {"seen": [0.0] * 3}
    for step in range(5):
        _, state = run(program, Row([1.0 + step], step=step), state)
    assert [round(value, 3) for value in state["seen"]] == [1.0, 5.437, 1872.773]


def test_state_that_stays_is_no_change() -> None:
    @device.program
    def rule(logits: Tensor, state: State) -> Tensor:
        state.x = state.x
        return logits.argmax()

    sampler = rule(x=1.0)
    assert not sampler.has_state
    assert read_program(sampler.text).next == {}


def test_deep_recordings_need_no_stack() -> None:
    def rule(logits: Tensor) -> Tensor:
        for i in range(400):
            logits = logits + float(i)
        return logits.argmax()

    assert chosen(rule, row()) == chosen(lambda logits: logits.argmax(), row())


def test_what_it_looks_at_is_known() -> None:
    assert not greedy().looks_back
    back = device.program(lambda logits: device.newest(2)[0])()
    counting = device.program(lambda logits: samplers.frequency_penalty(logits, 1.0).argmax())()
    assert (back.looks_back, back.counts) == (True, False)
    assert (counting.looks_back, counting.counts) == (True, True)


def test_minus_infinity_and_seeds_are_sent() -> None:
    @device.program
    def rule(logits: Tensor, state: State) -> Tensor:
        return (logits + state.bias[0]).argmax()

    sent = json.loads(rule(bias=[-math.inf, 1.0], seed=-1, logprobs=3).to_json())
    assert sent["given"] == {"bias": [None, 1.0]}
    assert (sent["seed"], sent["logprobs"]) == (2**64 - 1, 3)


# Mistakes


def adds_sizes(logits: Tensor) -> Tensor:
    return (logits + device.newest(5).to_float()).argmax()  # the mistake


def adds_kinds(logits: Tensor) -> Tensor:
    return (logits + device.step()).argmax()  # the mistake


def asks_truth(logits: Tensor) -> Tensor:
    return logits.argmax() if logits.max() > 0.0 else device.step()  # the mistake


def changes_kind(logits: Tensor, state: State) -> Tensor:
    state.x = logits  # the mistake
    return logits.argmax()


def reads_unknown(logits: Tensor, state: State) -> Tensor:
    return state.y  # the mistake


def means_all(logits: Tensor) -> Tensor:
    return device.where(logits > logits.mean(), 1, 0).argmax()  # the mistake


def draws_number(logits: Tensor) -> Tensor:
    return device.draw(logits.max())  # the mistake


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (means_all, r"mean of <float \[vocabulary\]>, whose size is no number"),
        (draws_number, r"draw takes one axis, not float \[\]"),
        (adds_sizes, r"add of sizes \[vocabulary\] and \[5\]"),
        (adds_kinds, r"add of float \[vocabulary\] and int \[\]: cast one of them"),
        (asks_truth, r"neither true nor false .*device.where"),
        (changes_kind, r"state.x is float \[\], and becomes float \[vocabulary\]"),
        (reads_unknown, r"there is no state.y; the program was given x"),
    ],
)
def test_a_mistake_is_told_at_its_line(rule: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(Mistake, match=message) as raised:
        device.program(rule)(x=1.0)
    lines = [frame.line for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert any(line is not None and line.endswith("# the mistake") for line in lines)


def test_a_program_returns_a_token() -> None:
    with pytest.raises(
        Mistake, match=r"returned <float \[vocabulary\]>: a program returns a token"
    ):
        device.program(lambda logits: logits)()


def test_tensors_are_there_only_within_a_program() -> None:
    with pytest.raises(Mistake, match=r"only within a function of `device.program`"):
        device.iota()
    leaked = []

    def leaks(logits: Tensor) -> Tensor:
        leaked.append(logits)
        return logits.argmax()

    device.program(leaks)()
    with pytest.raises(Mistake, match="another call of a program has made"):
        device.program(lambda logits: (logits + leaked[0]).argmax())()


@pytest.mark.parametrize("value", [[], [1.0, [2.0]], "x", None, [True, 1]])
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(Mistake):
        drifting(bias=value)


# The library


def test_top_k_leaves_so_many() -> None:
    of = row(3)
    best = sorted(range(VOCABULARY), key=lambda i: -of.logits[i])[:4]
    found = {
        chosen(lambda logits: device.draw(samplers.top_k(logits, 4)), of._replace(step=i))
        for i in range(200)
    }
    assert found == set(best)


def test_mirostat_comes_to_its_surprise() -> None:
    program = read_program(samplers.mirostat(mu=6.0, tau=3.0, rate=0.2).text)
    state: dict[str, Any] = {"mu": 6.0, "tau": 3.0, "rate": 0.2}
    surprises = []
    for i in range(300):
        chance = random.Random(i)
        logits = [chance.gauss(0, 2) for _ in range(VOCABULARY)]
        token, state = run(program, Row(logits, seed=9, step=i), state)
        whole = math.log(math.fsum(map(math.exp, logits)))
        surprises.append((whole - logits[token]) / math.log(2))
    assert abs(sum(surprises[50:]) / 250 - 3.0) < 0.25


def test_a_tournament_leaves_the_distribution_as_it_is() -> None:
    """SynthID's is not to be seen without the key: over keys, each token is as likely as before."""
    logits = [0.0, 1.0, 2.0, 0.5]
    program = read_program(samplers.synthid(temperature=1.0, key=1).text)
    times = [0] * 4
    for key in range(1500):
        of = Row(logits, newest=(1, 2, 3, 0), seed=key, step=1)
        times[run(program, of, {"temperature": 1.0, "key": key})[0]] += 1
    whole = sum(map(math.exp, logits))
    for count, logit in zip(times, logits, strict=True):
        assert abs(count / 1500 - math.exp(logit) / whole) < 0.05


@pytest.mark.parametrize(
    ("program", "score"),
    [
        (samplers.gumbel_watermark, watermark.gumbel_score),
        (samplers.synthid, watermark.synthid_score),
    ],
)
def test_who_has_the_key_recognizes_a_text(
    program: device.DeviceProgram, score: Callable[..., float]
) -> None:
    given: dict[str, Any] = {"temperature": 1.0, "key": 42}
    read = read_program(program(**given).text)
    text = [1, 2, 3, 4]
    for step in range(60):
        text.append(run(read, row(step, newest=text, step=step), given)[0])
    assert score(text[4:], key=42) > 5
    assert abs(score(text[4:], key=43)) < 4


def test_healing_holds_for_the_first_token_alone() -> None:
    rule = lambda logits, state: samplers.healed(logits, state.tokens).argmax()  # noqa: E731
    best = max(range(VOCABULARY), key=lambda i: row().logits[i])
    others = [(best + 1) % VOCABULARY, (best + 2) % VOCABULARY]
    assert chosen(rule, row(), tokens=others) in others
    assert chosen(rule, row(step=1), tokens=others) == best


def test_all_rules_of_a_sampler_go_together() -> None:
    sampler = replace(EVERY_STEP, top_k=400).resolved()  # so many that all tokens are sorted
    assert isinstance(sampler, device.ProgramSampler)
    for vocabulary in (500, 4_000, 49_152, 256_000):
        read_program(sampler.text).check_fits(vocabulary)


def test_every_rule_of_the_library_has_its_text_in_all_languages() -> None:
    """`TEXTS` holds those of Rust and JavaScript to Python's."""
    made = {
        name
        for name, value in vars(samplers).items()
        if not name.startswith("_")
        and (
            isinstance(value, device.DeviceProgram)
            or getattr(value, "__module__", "") == samplers.__name__
        )
    }
    assert made - {"padded"} <= TEXTS.keys()
    assert {"dry", "synthid"} <= made
