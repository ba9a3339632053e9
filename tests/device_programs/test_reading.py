"""Device programs while they are read: canonical text, mistakes at their places, and meaning."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.device_reference import Row, run
from support.programs_read import chosen_by, line_named, text_of, values_of

from inferlet import Sampler, device, samplers, watermark
from inferlet.device import State, Tensor
from pie_control.device_programs.reading import KnownPrograms
from pie_control.errors import ApiError
from pie_py.device_programs.fields import FIELDS
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
    program = read_program(text_of(sampler))
    program.check_fits(VOCABULARY)
    return run(program, of, given)[0]


# Reading


def test_the_text_is_canonical_and_has_what_is_needed_once() -> None:
    def rule(logits: Tensor) -> Tensor:
        unused = logits.exp()  # noqa: F841
        return (logits * 2.0 + logits * 2.0).argmax()

    text = text_of(device.program(rule)())
    assert [node[0] for node in json.loads(text)["nodes"]] == [
        *("logits", "constant", "mul", "add", "argmax")
    ]
    assert read_program(text).text == text


def test_kinds_are_those_of_what_is_given() -> None:
    rule = device.program(lambda logits, state: state.x.sum().to_int() + logits.argmax())
    texts = [text_of(rule(x=x)) for x in ([1.0, 2.0], [3, 4.5], [5, 6])]
    assert texts[0] == texts[1] != texts[2]


SCALE = 2.0


def scaled(logits: Tensor, by: float = 1.0) -> Tensor:
    return logits * by / SCALE


def test_a_function_brings_what_it_names() -> None:
    """Functions, lambdas, plain values of what is around it, words by other names."""
    from inferlet.device import where as choose
    from inferlet.samplers import top_k as best

    sizes, names = {"few": [3, 4]}, ("top", "cool")
    cooled: Any = lambda x, t=0.5: (  # noqa: E731
        x / t
    )

    def around(logits: Tensor, state: State) -> Tensor:
        for name in names:
            if name == "top":
                logits = best(logits, sizes["few"][0])
            elif name == "cool" and len(names) > 1:
                logits = cooled(scaled(logits, by=4.0))
        flat = [one * 1.0 for one in device.newest(2)[:1].to_float()]
        return choose(state.x > flat[0], logits.argmax(), 7)

    wanted = device.program("""
        def rule(logits, state):
            logits = top_k(logits, 3) * 4.0 / 2.0 / 0.5
            return where(state.x > newest(2)[:1].to_float()[0] * 1.0, logits.argmax(), 7)
    """)
    assert text_of(device.program(around)(x=1.0)) == text_of(wanted(x=1.0))
    short = device.program(lambda l: (best((l), sizes["few"][1])).argmax())  # noqa: E741
    assert text_of(short()) == text_of(
        device.program("def rule(logits): return top_k(logits, 4).argmax()")()
    )


def test_words_mean_nothing_outside_and_texts_have_to_be_known() -> None:
    with pytest.raises(TypeError, match="a word of device programs"):
        device.iota()
    unknown: dict[str, Any] = {}
    exec(compile("def rule(logits): return logits.argmax()", "<nowhere>", "exec"), unknown)
    with pytest.raises(TypeError, match=r"the text of rule is not known \(<nowhere>\)"):
        device.program(unknown["rule"])


def test_state_is_there_at_the_next_token() -> None:
    program = read_program(text_of(drifting(bias=0.0)))
    state: dict[str, Any] = {"bias": 0.0}
    for wanted in (1.0, 1.5, 1.75):
        _, state = run(program, row(), state)
        assert state == {"bias": wanted}


def test_a_list_of_the_state_keeps_a_number_of_each_token() -> None:
    @device.program
    def noting(logits: Tensor, state: State) -> Tensor:
        state.seen = state.seen.with_at(device.step(), logits.max() * state.seen.sum().exp())
        return logits.argmax()

    program, state = read_program(text_of(noting(seen=[0.0] * 3))), {"seen": [0.0] * 3}
    for step in range(5):
        _, state = run(program, Row([1.0 + step], step=step), state)
    assert [round(value, 3) for value in state["seen"]] == [1.0, 5.437, 1872.773]


def test_state_that_stays_is_no_change() -> None:
    @device.program
    def rule(logits: Tensor, state: State) -> Tensor:
        state.x = state.x
        return logits.argmax()

    assert read_program(text_of(rule(x=1.0))).next == {}


def test_deep_recordings_need_no_stack() -> None:
    def rule(logits: Tensor) -> Tensor:
        for i in range(400):
            logits = logits + float(i)
        return logits.argmax()

    assert chosen(rule, row()) == chosen(lambda logits: logits.argmax(), row())


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
        (asks_truth, r"neither true nor false .*where\(condition"),
        (changes_kind, r"state.x is float \[\], and becomes float \[vocabulary\]"),
        (reads_unknown, r"there is no state.y; the program was given x"),
        (lambda logits: logits, r"returned <float \[vocabulary\]>: a program returns a token"),
    ],
)
def test_a_mistake_is_told_at_its_line(rule: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        text_of(device.program(rule)(x=1.0))
    line = line_named(str(raised.value))
    assert "# the mistake" in line or "lambda" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(logits):\n  import os", "2:3: `import os` is no part of the language"),
        ("def f(logits):\n  return logits.__class__", "2:10: a tensor has no `__class__`"),
        ("def f(logits):\n  return logits.argmx()", "did you mean `argmax`"),
        ("def f(logits):\n  return open('x')", "2:10: there is no name `open`"),
        ("def f(logits):\n  return drow(logits)", "did you mean `draw`"),
        (
            "def f(logits):\n  return device.drow(logits)",
            "device has no `drow`; did you mean `draw`",
        ),
        ("def f(logits):\n  return logits.argmax(", r"2:23: '\(' was never closed"),
        ("def f(logits):\n  for i in range(10**9): logits += 1", "more than 4096 elements"),
        ("def f(logits):\n  while True: x = 1", "more than 50000 steps"),
        ("def f(logits):\n  return f(logits)", "call each other more than 32 deep"),
        ("def f(logits):\n  return 10**10**10", "too large"),
        ("def f(logits):\n  return [logits] * 10**9", "of numbers and tensors alone"),
        ("def f(logits):\n  return logits.top(1)", r"returned <int \[1\]>"),
        ("def f(logits):\n  x = logits.max()", "f returns nothing"),
        ("def f(logits):\n  return draw(logits, 1, 2, 3)", "2:10: draw takes logits, stream$"),
        ("def f(logits):\n  return logits.sum(axis=0)", "2:10: sum takes nothing"),
        ("def f(logits):\n  return logits.where(1)", "2:10: where takes condition, other"),
        ("def f(logits):\n  return len()", "2:10: len takes value"),
        ("def f(logits):\n  return logits.argmax", "f returned the function `argmax`, no tensor"),
        ("def f(logits, state):\n  return state + 1", "add of the state and 1"),
        ("def f(logits):\n  return 5", r"f returned 5, no tensor: a program returns a token, int"),
        ("def f(logits):\n  return logits.top(logits.argmax())[0]", r"known here, not <int \[\]>"),
        ("def f(logits):\n  return newest(2.5)[0]", "newest takes a whole number that .* not 2.5"),
        ("def f(logits):\n  return (logits / logits.shape[0]).argmax()", "2:11: the size `vocab"),
        ("def f(logits):\n  return logits.shape[0] - 1", "the size `vocabulary` is no number"),
        ("def f(logits):\n  for i in range(VOCABULARY): pass", "2:12: the size `vocabulary` is no"),
        ("def f(logits):\n  return (logits / log(VOCABULARY)).argmax()", "2:20: the size `vocab"),
        ("def f(logits):\n  return (logits * exp(VOCABULARY)).argmax()", "2:20: the size `vocab"),
        ("def f(logits):\n  return (logits * ~VOCABULARY).argmax()", "2:20: the size `vocab"),
        ("def f(logits):\n  return [1, 2][VOCABULARY] + step()", "2:10: the size `vocabulary`"),
        ("def f(logits):\n  return logits.top(3)[VOCABULARY]", "2:10: the size `vocabulary`"),
        ("def f(logits):\n  return logits.top(9)[:VOCABULARY].max()", "2:10: the size `vocab"),
        ("def f(logits, *more):\n  return g(logits)", "parameters have names, and no stars"),
        ("def f(logits):\n  return logits[1.5]", "gather takes int as places"),
        ("x = 1", "no function"),
        ("def f(logits):\n  return " + "-" * 5000 + "logits.argmax()", "program: nested too deep"),
        ("class f:\n  pass", "`class f:` is no part of the language"),
        ("return 1\ndef f(logits): return logits", "1:1: `return 1` is no part of the language"),
        (
            "def f(logits):\n  return top_k(logits, 5, k=3)",
            "2:10: top_k takes k, logits, each once",
        ),
        ("def f(logits):\n  for x in top_k: pass", "2:3: the function `top_k` has no elements"),
        ("def f(logits):\n  return min[1]", "2:10: the function `min` has no places"),
        ("def f(logits):\n  return len(min)", "2:10: the function `min` has no length"),
    ],
)
def test_what_is_no_program_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        text_of(device.program(text)())
    assert raised.value.code == "invalid-argument"


def test_a_byte_order_mark_is_no_part_of_a_text() -> None:
    text = "def f(logits): return logits.argmax()"
    assert text_of(device.program("\ufeff" + text)()) == text_of(device.program(text)())


@pytest.mark.parametrize("odd", ["\x0c", "\x1c", "\x85", "\u2028"])
def test_what_only_some_take_for_the_end_of_a_line_is_none(odd: str) -> None:
    text = f"def f(logits):\n    # a{odd}b \xe9\xe9\xe9\xe9\xe9\xe9\n    return logits.argmax()"
    plain = "def f(logits): return logits.argmax()"
    assert text_of(device.program(text)()) == text_of(device.program(plain)())


@pytest.mark.parametrize("value", [[], [1.0, [2.0]], "x", {}, [True, 1]])
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(ApiError, match="bias"):
        text_of(drifting(bias=value))


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
    program = read_program(text_of(samplers.mirostat(mu=6.0, tau=3.0, rate=0.2)))
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
    program = read_program(text_of(samplers.synthid(temperature=1.0, key=1)))
    times = [0] * 4
    for key in range(600):
        of = Row(logits, newest=(1, 2, 3, 0), seed=key, step=1)
        times[run(program, of, {"temperature": 1.0, "key": key})[0]] += 1
    whole = sum(map(math.exp, logits))
    for count, logit in zip(times, logits, strict=True):
        assert abs(count / 600 - math.exp(logit) / whole) < 0.05


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
    read = read_program(text_of(program(**given)))
    text = [1, 2, 3, 4]
    for step in range(40):
        text.append(run(read, row(step, newest=text, step=step), given)[0])
    assert score(text[4:], key=42) > 5
    assert abs(score(text[4:], key=43)) < 4


def test_healing_holds_for_the_first_token_alone() -> None:
    rule = lambda logits, state: samplers.healed(logits, state.tokens).argmax()  # noqa: E731
    best = max(range(VOCABULARY), key=lambda i: row().logits[i])
    others = [(best + 1) % VOCABULARY, (best + 2) % VOCABULARY]
    assert chosen(rule, row(), tokens=others) in others
    assert chosen(rule, row(step=1), tokens=others) == best


EVERY_FIELD = Sampler(
    logit_bias={3: 1.0, 4: None},
    allowed_tokens=[1, 2],
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    no_repeat_ngram_size=3,
    banned_sequences=[[5], [1, 2, 3]],
    min_tokens=3,
    end_tokens=[1],
    dry_multiplier=0.5,
    dry_base=2.0,
    dry_allowed_length=3,
    dry_sequence_breakers=[4],
    temperature=0.5,
    top_k=400,  # so many that all tokens are sorted
    top_p=0.5,
    min_p=0.25,
    top_n_sigma=2.0,
    typical_p=0.5,
    epsilon_cutoff=0.25,
    eta_cutoff=0.25,
    xtc_probability=0.5,
    xtc_threshold=0.2,
)


def test_all_fields_of_a_sampler_go_together() -> None:
    assert EVERY_FIELD.parameters.keys() == FIELDS.keys()
    for vocabulary in (500, 4_000, 49_152, 256_000):
        read_program(text_of(EVERY_FIELD)).check_fits(vocabulary)


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_is_dropped_on_the_way(name: str) -> None:
    """Each changes the program, or what it is given."""
    with_all = text_of(EVERY_FIELD), values_of(EVERY_FIELD)
    without = Sampler(**{k: v for k, v in EVERY_FIELD.parameters.items() if k != name})
    assert (text_of(without), values_of(without)) != with_all


def test_what_has_a_stranger_s_constants_is_not_read_in_the_server_s_loop() -> None:
    """A library's program of any constants waits for a confined process, as a text does."""
    known = KnownPrograms(None)  # type: ignore[arg-type]
    for sampler, inline in (
        (Sampler(repetition_penalty=1.5), True),
        (samplers.mirostat(mu=6.0, tau=3.0, rate=0.2), False),
        (greedy(), False),
    ):
        assert (known.find(chosen_by(sampler).key) is not None) is inline
