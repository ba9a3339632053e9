"""Grammars by themselves: what random walks within them give, limits, and what matchers do."""

from __future__ import annotations

import functools
import json
import random
import re
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jsonschema
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, assume, given, settings
from support import rig
from support.checkpoints import small_tokenizer
from support.compiled_grammars import compile_grammar
from support.grammar_strategies import BOMBS, conditions, documents, regexes, schemas
from support.instances import Instances
from support.scheduler_fixtures import MODEL

from inferlet import grammar as sdk
from pie_control.api.grammar import functions
from pie_control.api.grammar.matcher import Grammar, Matcher
from pie_control.api.grammar.service import BYTES_A_CHARACTER, LEAST_BYTES, GrammarService
from pie_control.api.grammar.vocabulary import Vocabulary
from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError
from pie_control.fairness import Owner
from pie_control.instances.futures import FutureKind
from pie_control.models.tokenizer import TextCodec
from pie_control.scheduler.commands.sample import TokenMask
from pie_control.wasm.linker import SUSPENDED
from pie_py.config.limits import Limits
from pie_py.config.services import ConfinedConfig, GrammarConfig
from pie_py.wire.plan import ModelDescription

STOPS = [1, 3]
VOCABULARY = 400  # more than the tokenizer has


@functools.cache
def codec() -> TextCodec:
    folder = Path(tempfile.mkdtemp(prefix="pie-"))
    small_tokenizer().save_pretrained(folder)
    return TextCodec(folder)


def model(stops: list[int] = STOPS, name: str = "test") -> ModelDescription:
    return replace(MODEL, name=name, vocab_size=VOCABULARY, stop_tokens=stops)


CONFINED = ConfinedPool(ConfinedConfig())
service = GrammarService(GrammarConfig(), CONFINED)


async def compiled(kind: str, text: str, stops: list[int] = STOPS) -> Grammar:
    name = "test" if stops else "endless"
    return await compile_grammar(service, model(stops, name), codec(), kind, text)


class Walk:
    """A matcher, and what waits for its masks."""

    def __init__(self, grammar: Grammar) -> None:
        self.turn = trio.Event()
        self.matcher = Matcher(grammar, self._wake, Owner("tester", "walk"))

    def _wake(self) -> None:
        self.turn.set()
        self.turn = trio.Event()

    async def idle(self) -> Matcher:
        """The matcher, once no thread has it."""
        done = trio.Event()
        if not self.matcher.call(done.set):
            await done.wait()
        return self.matcher

    async def mask(self) -> TokenMask:
        mask = (await self.idle()).mask()
        await self.idle()
        assert mask.words is not None
        return mask

    async def allowed(self) -> list[int]:
        mask = await self.mask()
        assert mask.words is not None
        bits = np.unpackbits(mask.words.view(np.uint8), bitorder="little")
        assert not bits[VOCABULARY:].any()
        return np.flatnonzero(bits).tolist()


def _check_mask(matcher: Matcher, allowed: set[int], generator: random.Random) -> None:
    """What the mask shows can be consumed. What it hides cannot, unless it begins a forced text."""
    for token in generator.sample(sorted(allowed), min(8, len(allowed))):
        assert matcher.count_allowed([token]) == 1
    # A single token may be of a forced text, too: llguidance does not tell one that its mask shows.
    if len(allowed) > 1 and not matcher.forced():
        for token in generator.sample(range(codec().id_limit), 8):
            assert matcher.count_allowed([token]) == (token in allowed)


async def random_text(grammar: Grammar, seed: int, *, forced: bool, back: bool) -> str:
    """A text by random tokens within the grammar, as a model with no idea would write it."""
    walk, generator = Walk(grammar), random.Random(seed)
    tokens: list[int] = []
    for _ in range(2000):
        matcher = await walk.idle()
        if forced and (sure := matcher.forced()):
            assert matcher.count_allowed(sure) == len(sure)
            matcher.advance(sure)
            tokens += sure
            continue
        allowed = await walk.allowed()
        assert allowed
        _check_mask(matcher, set(allowed), generator)
        assert bool(set(allowed) & set(STOPS)) == matcher.accepting
        if matcher.finished:
            assert set(allowed) == set(STOPS)
        # The end is chosen more often than by chance: endless texts test little.
        ends = sorted(set(allowed) & set(STOPS))
        token = ends[0] if ends and generator.random() < 0.3 else generator.choice(allowed)
        matcher.advance([token])
        if token in STOPS:
            assert matcher.ended
            assert matcher.accepting
            return codec().decode(tokens)
        tokens.append(token)
        if back and generator.random() < 0.2:
            count = generator.randint(1, min(3, len(tokens)))
            matcher.rollback(count)
            del tokens[-count:]
    raise AssertionError(f"no end: {codec().decode(tokens)[:200]}")


walks = settings(max_examples=60, suppress_health_check=list(HealthCheck), print_blob=True)


@given(schema=schemas, seed=st.integers(0, 2**32), forced=st.booleans(), back=st.booleans())
@walks
async def test_every_text_within_a_json_schema_parses_and_validates(
    schema: dict[str, Any], seed: int, forced: bool, back: bool
) -> None:
    grammar = await compiled("json-schema", json.dumps(schema))
    text = await random_text(grammar, seed, forced=forced, back=back)
    jsonschema.validate(json.loads(text), schema)


@given(pattern=regexes, seed=st.integers(0, 2**32), forced=st.booleans(), back=st.booleans())
@walks
async def test_every_text_within_a_regular_expression_matches(
    pattern: str, seed: int, forced: bool, back: bool
) -> None:
    grammar = await compiled("regex", pattern)
    text = await random_text(grammar, seed, forced=forced, back=back)
    # A byte of a longer character is a token of its own here, and \w has characters of four.
    assume("�" not in text)
    assert re.fullmatch(pattern, text), text


LARK = """
start: sum
sum: term (("+" | "-") term)*
term: NUMBER | "(" sum ")"
NUMBER: /[1-9][0-9]{0,2}/
"""


@pytest.mark.parametrize("forced", [False, True])
async def test_a_context_free_grammar(forced: bool) -> None:
    grammar = await compiled("lark", LARK)
    for seed in range(20):
        text = await random_text(grammar, seed, forced=forced, back=False)
        assert isinstance(eval(text), int)


# Grammars, and what they take and refuse.
TAKEN: list[tuple[str, Any, str, str]] = [
    ("json-schema", True, "3 [{}] null", ""),
    ("json-schema", {"properties": {"a": {"type": "integer"}}}, '{"a":1} {"a":\t1}', '{"a":"1"}'),
    ("json-schema", {"x-guidance": {"any_whitespace": False}, "type": "array"}, "[]", "[1,2]"),
    (
        "json-schema",
        {"properties": {"a": True, "b": True}, "x-guidance": {"strict": True}},
        '{} {"a":1,"b":2}',
        '{"b":1,"a":2} {"c":1}',
    ),
    (
        "json-schema",
        {"properties": {"a": True, "b": True}, "x-guidance": {"any_key_order": True}},
        '{"b":1,"a":2} {"a":1,"b":2,"c":3} {"b":1} {}',
        "[",
    ),
    (
        "lark",
        'start: "x" %json {"properties": {"a": true}, "x-guidance": {"strict": true}}',
        'x{"a":·1} x{}',
        'x{"a":1} x{"b":·1}',
    ),
    (
        "json-schema",
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "of": {"type": of}},
                    "required": ["kind"],
                }
                for kind, of in (("a", "null"), ("b", "boolean"))
            ]
        },
        '{"kind":"a","of":null} {"kind":"b","of":true}',
        '{"kind":"a","of":true} {"kind":"c"}',
    ),
    (
        "json-schema",
        {"contains": {"minimum": 5}, "items": {"type": "integer"}, "maxItems": 4},
        "[7] [1,2,3,9] [7,7] {}",
        "[] [1] [1,2,3,4] [7,1.5]",
    ),
    (
        "json-schema",
        {"contains": {"const": 1}, "minContains": 2, "maxContains": 2, "maxItems": 4},
        "[1,1] [1,2,1] [0,1,1,0]",
        "[1] [1,1,1] [1,1,0,1]",
    ),
    (
        "json-schema",
        {"items": {"enum": ["a", "b", 1]}, "uniqueItems": True, "minItems": 1},
        '["a"] ["b",1,"a"] {}',
        '[] ["a","a"] [1,"b",1]',
    ),
    ("json-schema", {"format": "date"}, '"2020-02-29" "2000-02-29"', '"2021-02-29" "1900-02-29"'),
    # What says nothing: notes that are no formats, and null for what is not there.
    ("json-schema", {"type": "string", "format": "uri-reference"}, '"a"', "1"),
    ("json-schema", {"format": "int64", "required": None, "items": None}, '"a" 1 [2]', "["),
    (
        "json-schema",
        {"properties": {"a": {"required": True}, "b": {"required": False}}, "type": "object"},
        '{"a":1} {"a":1,"b":2}',
        '{} {"b":1}',
    ),
    (
        "json-schema",  # as pydantic writes it, of kinds with a default
        {
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "discriminator": {"propertyName": "kind"},
            "$defs": {
                kind: {"type": "object", "properties": {"kind": {"const": kind}, of: {"type": of}}}
                for kind, of in (("a", "null"), ("b", "boolean"))
            },
        },
        '{"kind":"a","null":null} {"kind":"b","boolean":true}',
        '{"kind":"a","null":true} {"kind":"c"} {}',
    ),
    ("ebnf", 'root ::= ("a" | x)+\nx ::= [0-9]{2} "-"', "a12-a 34-", "1-a b"),
    ("lark", 'root ::= "a" x\nx ::= [0-9]', "a1", "a"),  # either syntax, by either name
    ("ebnf", 'start: "a" X\nX: /[0-9]/', "a1", "a"),
    ("ebnf", '\ufeffroot ::= "a"', "a", "b"),  # as editors of Windows write it
    ("lark", '\ufeffstart: "a"', "a", "b"),
    ("lark", sdk.Grammar.choice([f"x{i}" for i in range(3000)]).text, "x17 x2999", "x x3000"),
    ("lark", sdk.Grammar.choice(["", "a", "ab"]).text, "a ab", "b"),
    ("ebnf", r'root ::= "\u00e9\u0041\x22" [\u00e0-\u00ea]', 'éA"è', 'éA"ÿ'),
    ("ebnf", r'root ::= "\U0001f600" [\xe0] "\\u00e9"', "😀à\\u00e9", "😀àé"),
    ("json-schema", {"type": "number", "minimum": -1e300, "maximum": 1e300}, "5 -0.5", "x"),
    ("json-schema", {"type": "integer", "minimum": -(2**70), "exclusiveMaximum": 3}, "-5 2", "3"),
    (
        "json-schema",
        {"properties": {"a": {"type": "integer"}, "é]^": {}}, "additionalProperties": {"const": 0}},
        '{"a":1,"b":0} {"ab":0} {"":0} {"é":0} {"é]^":1,"é]":0} {"\\"":0} {}',
        r'{"\u0061":0} {"a":1,"b":1} {"a":"x"} {"\u00e9]^":0} {"b":0,"\u0061":0}',
    ),
    ("json-schema", {"properties": {"a": {"type": "null"}}}, '{"a":null,"b":[]}', r'{"\u0061":1}'),
    ("json-schema", {"anyOf": [{"not": {"minItems": 0}}, {"const": 1}]}, "1", "[] [1] 2"),
    ("sequence", [["lark", 'start: "a"+'], ["json-schema", '{"const": [1]}']], "aa[1]", "[1] a"),
]


@pytest.mark.parametrize(("kind", "text", "right", "wrong"), TAKEN, ids=str)
async def test_what_a_grammar_takes(kind: str, text: Any, right: str, wrong: str) -> None:
    if isinstance(text, dict) and kind == "json-schema":  # the texts are as short as can be
        text["x-guidance"] = {"any_whitespace": True, **text.get("x-guidance", {})}
    grammar = await compiled(kind, text if isinstance(text, str) else json.dumps(text))
    for one in right.split(" ") + wrong.split(" "):
        matcher, tokens = Walk(grammar).matcher, codec().encode(one.replace("·", " "))
        fits = bool(tokens) and matcher.count_allowed(tokens) == len(tokens)
        if fits:
            matcher.advance(tokens)
        assert (fits and matcher.accepting) == (one in right.split(" ")), one


@given(schema=conditions, values=st.lists(documents, min_size=1, max_size=8))
@walks
async def test_a_rewritten_schema_takes_nothing_more(schema: Any, values: list[Any]) -> None:
    """`not`, `if`, `oneOf`, names and dependencies are held to, or refused by name."""

    try:
        grammar = await compiled("json-schema", json.dumps(schema))
    except ApiError:
        return
    for value in values:
        tokens = codec().encode(json.dumps(value))
        matcher = Walk(grammar).matcher
        if matcher.count_allowed(tokens) == len(tokens):
            matcher.advance(tokens)
            if matcher.accepting:
                jsonschema.validate(value, schema)


async def test_a_model_without_stop_tokens() -> None:
    walk = Walk(await compiled("regex", "ab?", []))
    [a], [b] = codec().encode("a"), codec().encode("b")
    assert a in await walk.allowed()
    matcher = await walk.idle()
    matcher.advance([a])
    assert matcher.accepting
    assert not matcher.finished
    assert await walk.allowed() == [b]
    matcher.advance([b])
    assert matcher.finished
    assert await walk.allowed() == []


async def test_special_tokens_are_no_text() -> None:
    """`<|user|>` is text to a regular expression, but the special token of that name is not."""

    walk = Walk(await compiled("regex", r"<\|user\|>"))
    [user] = codec().encode("<|user|>")
    assert user not in await walk.allowed()
    with pytest.raises(ApiError, match="not allowed"):
        walk.matcher.advance([user])


async def test_a_refused_token_changes_nothing() -> None:
    walk = Walk(await compiled("regex", "abc"))
    a, b, c = (codec().encode(x)[0] for x in "abc")
    matcher = walk.matcher
    for wrong, place in (
        ([b], 0),
        ([a, c], 1),
        ([a, STOPS[0]], 1),
        ([a, b, c, STOPS[0], a], 4),
        ([a, 1 << 31], 1),
    ):
        with pytest.raises(ApiError, match=f"^invalid-argument: .*number {place} of"):
            matcher.advance(wrong)
        assert not matcher.accepting
    assert matcher.count_allowed([a, b, c, STOPS[1], a]) == 4
    assert matcher.count_allowed([a, STOPS[1]]) == 1
    assert matcher.count_allowed([a, b, c, 1 << 31]) == 3
    matcher.advance([a, b, c, STOPS[1]])
    assert matcher.ended
    assert matcher.count_allowed([a]) == 0
    with pytest.raises(ApiError, match="not allowed"):
        matcher.advance([STOPS[0]])
    with pytest.raises(ApiError, match="5 tokens to take back, and 4 came"):
        matcher.rollback(5)
    matcher.rollback(2)
    assert not matcher.ended
    matcher.advance([c])
    matcher.rollback(3)
    assert matcher.forced() == codec().encode("abc")
    matcher.advance([])


async def test_a_sampled_token_moves_the_matcher_and_its_next_mask_is_begun() -> None:
    walk = Walk(await compiled("regex", "[ab]{3}"))
    a = codec().encode("a")[0]
    matcher = await walk.idle()
    matcher.sampling = True
    with pytest.raises(ApiError, match=r"^busy"):
        matcher.check_free()
    matcher.on_token(a)
    matcher.check_free()
    first = matcher.mask()
    await walk.idle()
    assert first.words is not None
    assert matcher.mask() is first
    matcher.sampling = True
    matcher.on_token(None)  # the sample failed: nothing moved
    assert matcher.mask() is first


async def test_long_work_is_done_in_a_thread_and_others_wait_for_it() -> None:
    walk = Walk(await compiled("regex", "(abc){1,50}"))
    tokens = codec().encode("abc" * 20)
    matcher = await walk.idle()
    order: list[Any] = []
    matcher.lend(lambda: matcher.advance(tokens), order.append)
    assert not matcher.call(lambda: order.append("next"))
    assert order == []
    await walk.idle()
    assert order == [None, "next"]
    assert matcher.accepting
    assert codec().encode("a")[0] in await walk.allowed()
    matcher.lend(lambda: matcher.advance([0]), order.append)
    await walk.idle()
    refusal = order[-1]
    assert isinstance(refusal, ApiError)
    matcher.rollback(len(tokens))
    matcher.lend(lambda: matcher.count_allowed([*tokens, 0]), order.append)
    await walk.idle()
    assert order[-1] == len(tokens)
    assert await walk.allowed() == codec().encode("a")


def test_a_mask_that_allows_most_of_a_large_vocabulary_is_not_listed() -> None:
    size = 150_016
    known = np.full(size // 32, 0xFFFFFFFF, np.uint32)
    texts = [b"x"] * size
    texts[9] = b"xyz"
    tokenizer: Any = None  # is not asked
    vocabulary = Vocabulary(tokenizer, size, frozenset(), known, known, texts, longest=3)
    few = np.zeros_like(known)
    few[0] = 1 << 3 | 1 << 9
    assert vocabulary.longest_start(few.tobytes()) == 9
    assert vocabulary.longest_start(np.zeros_like(known).tobytes()) is None
    everything = known.tobytes()
    tracemalloc.start()
    try:
        assert vocabulary.longest_start(everything) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * known.nbytes  # a list has 100 times as much, and takes milliseconds


async def test_a_forced_text_is_found_in_a_thread_and_told_when_its_end_is_near() -> None:
    walk = Walk(await compiled("regex", "[ab]a{1000}b"))
    a = codec().encode("a")[0]
    matcher = walk.matcher
    answers: list[Any] = []
    assert not matcher.foresees
    matcher.lend(matcher.forced, answers.append)
    await walk.idle()
    assert answers == [[]]
    matcher.on_token(a)  # a sampled one
    assert matcher.foresees  # found along with the mask
    matcher = await walk.idle()
    assert matcher.forced() == [], "very many are found by nobody"
    for count in (500, 480):
        matcher.advance([a] * count)
    sure = matcher.forced()
    assert matcher.count_allowed(sure) == len(sure) == 21


async def test_the_same_text_is_compiled_once() -> None:
    text = '{"type": "integer", "maximum": 12345}'
    found: list[Grammar] = []

    async def one() -> None:
        found.append(await compiled("json-schema", text))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(one)
    assert all(grammar is found[0] for grammar in found)
    assert await compiled("json-schema", text) is found[0]


async def test_users_take_turns_and_each_may_have_so_many_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pie_control.api.grammar.service.USER_COMPILATIONS", 20)
    monkeypatch.setattr("pie_control.api.grammar.service.THREADS", 1)
    one_process = ConfinedPool(ConfinedConfig(processes=1))
    busy = GrammarService(GrammarConfig(), one_process)
    order: list[str] = []

    async def one(user: str, number: int) -> None:
        try:
            await compile_grammar(busy, model(), codec(), "regex", f"{user}{{{number}}}", user)
            order.append(user)
        except ApiError as error:
            order.append(f"{user}: {error}")

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(one, "a", number)
        await trio.testing.wait_all_tasks_blocked()
        refused = [said for said in order if said != "a"]  # some may be compiled by now
        assert len(refused) == 10
        assert all(said.startswith("a: limit-exceeded: 20 grammars of") for said in refused)
        before = len(order)
        nursery.start_soon(one, "b", 1)
    assert order.index("b") < before + 3
    await one("a", 99)
    assert order[-1] == "a"
    one_process.close()


async def test_who_wants_the_same_goes_on_if_the_first_one_gives_up() -> None:
    shared = GrammarService(GrammarConfig(), CONFINED)
    found: list[Grammar | ApiError] = []

    def start() -> Callable[[], None]:
        return shared.start(model(), codec(), "regex", "ab", "a", found.append)

    first = start()
    await trio.testing.wait_all_tasks_blocked()
    second = start()
    first()
    await trio.testing.wait_all_tasks_blocked()
    second()
    start()  # before the compilation knows that all have given up
    with trio.fail_after(60):
        while not found:
            await trio.sleep(0.001)
    assert [type(each) for each in found] == [Grammar]


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4 * LEAST_BYTES
    monkeypatch.setattr("pie_control.api.grammar.service.KEPT_BYTES", most)
    small = GrammarService(GrammarConfig(), CONFINED)
    for i in range(10):
        await compile_grammar(small, model(), codec(), "regex", f"a{{{i + 1}}}")
    assert len(small) == 3
    await compile_grammar(small, model(), codec(), "regex", "b" * (most // BYTES_A_CHARACTER))
    assert len(small) == 3


WRONG: list[tuple[str, str, str]] = [
    ("json-schema", "{", "JSON"),
    ("json-schema", '{"type": "intteger"}', "intteger"),
    ("json-schema", '{"type": "string", "contentEncoding": 5, "unevaluatedItems": 3}', ""),
    ("json-schema", "[]", ""),
    ("json-schema", '{"enum": []}', ""),
    ("json-schema", "false", ""),
    ("regex", "(", "regex"),
    ("regex", "(?=a)b", "look"),
    ("regex", r"(a)\1", "backref"),
    ("lark", "", ""),
    ("lark", "start: unknown_rule", "unknown"),
    ("lark", "begin: /a/", "start"),
    ("lark", 'start: "a', ""),
    ("lark", "start: x\nx: x", "no text satisfies it"),
    ("json-schema", '{"$ref": "#"}', "no text satisfies it"),
    ("ebnf", "", ""),
    ("ebnf", "root ::= nothing", "nothing"),
    ("ebnf", 'root ::= "a', ""),
    ("ebnf", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "nested"),
    ("sequence", '[["regex"]]', "list of"),
    ("sequence", '[["sequence", "[]"]]', "list of"),
    ("sequence", '[["regex", "a"], ["regex", "("]]', "regex"),
    ("json-schema", '{"type": "number", "minimum": 1e300}', "range"),
    ("json-schema", '{"x-guidance": {"strict": 1}}', "strict is 1"),
    ("json-schema", '{"required": 5}', "array for 'required', got 5"),
    ("lark", 'start: %json {"properties": 5}', "properties must be an object"),
    ("json-schema", '{"oneOf": [5]}', "must be an object or boolean"),
    ("json-schema", '{"uniqueItems": true}', "uniqueItems"),
    ("json-schema", '{"contains": {"type": "null"}}', "contains"),
    ("json-schema", '{"not": {"multipleOf": 3}}', "not"),
    ("json-schema", '{"if": {"pattern": "a"}, "then": false}', "if"),
    (
        "json-schema",
        json.dumps(
            {"x-guidance": {"any_key_order": True}, "properties": dict.fromkeys("abcdef", True)}
        ),
        "any order",
    ),
    ("json-schema", "[" * 50_000, ""),
    ("lark", 'start: %json {"x-guidance": {"strict": 1}}', "strict is 1"),
    ("lark", "start: %json " + '{"not":' * 50_000, ""),
    ("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000, "nested"),
]


@pytest.mark.parametrize(("kind", "text", "word"), WRONG, ids=lambda v: str(v)[:30])
async def test_a_wrong_grammar_is_an_error_that_says_why(kind: str, text: str, word: str) -> None:
    with pytest.raises(ApiError, match=r"^(invalid-argument|limit-exceeded): ") as caught:
        await compiled(kind, text)
    assert word.lower() in str(caught.value).lower()
    assert len(str(caught.value)) < 700


async def test_grammars_and_matchers_of_an_instance_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functions, "MATCHERS", 1)
    instance = Instances().launch("ann")
    instance.limits = Limits(grammars=1)
    calls, grammar = rig.grammar, await compiled("regex", "a")

    def take() -> int:
        future = instance.futures.create(FutureKind.GRAMMAR)
        future.resolve(grammar)
        handle: int = calls.take_grammar(instance, future.handle)
        return handle

    held = take()
    with pytest.raises(ApiError, match=r"^limit-exceeded: 1 grammars"):
        take()
    with pytest.raises(ApiError, match=f"^invalid-handle: {held} is no matcher"):
        calls.is_accepting(instance, held)
    matcher = calls.create_matcher(instance, held)
    assert not calls.is_accepting(instance, matcher)
    with pytest.raises(ApiError, match=r"^limit-exceeded: 1 matchers"):
        calls.create_matcher(instance, held)
    with pytest.raises(ApiError, match=f"^invalid-handle: {matcher} is no grammar"):
        calls.release_grammar(instance, matcher)
    calls.destroy_matcher(instance, matcher)
    calls.create_matcher(instance, held)
    calls.release_grammar(instance, held)
    take()


async def test_grammars_of_all_users_take_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = Instances()
    grammars = [await compiled("regex", text) for text in ("a+", "b+")]
    all_bytes = sum(grammar.size for grammar in grammars)

    def made(user: str, grammar: Grammar) -> Callable[[], int]:
        instance = instances.launch(user)
        future = instance.futures.create(FutureKind.GRAMMAR)
        future.resolve(grammar)
        return functools.partial(rig.grammar.take_grammar, instance, future.handle)

    monkeypatch.setattr(functions, "GRAMMAR_BYTES", all_bytes - 1)
    made("ann", grammars[0])()
    take = made("ben", grammars[1])
    with pytest.raises(ApiError, match=r"^out-of-resources: the grammars of all users"):
        take()
    monkeypatch.setattr(functions, "GRAMMAR_BYTES", all_bytes)
    take()  # the same future: it has not been used up


async def test_a_long_step_of_an_earlier_life_answers_no_later_one() -> None:
    one = rig.Rig()
    instance, grammar = one.launch(), await compiled("regex", "[a-z ]*")

    def taken() -> Any:
        future = instance.futures.create(FutureKind.GRAMMAR)
        future.resolve(grammar)
        return rig.grammar.take_grammar(instance, future.handle)

    matcher = rig.grammar.create_matcher(instance, taken())
    tokens = codec().encode("a b c d e f g h i j k l m")
    assert rig.grammar.advance(instance, matcher, tokens) is SUSPENDED
    one.registry.begin_again(instance)  # as a durable one, whose worker was lost
    taken()
    while not one.executor._work.is_set():
        await trio.sleep(0.01)
    assert instance not in one.executor._answers


def test_what_is_refused_at_once() -> None:
    with pytest.raises(ApiError, match=r"^invalid-argument: no kind .*json-schema, regex, lark"):
        service.check("yacc", "")
    with pytest.raises(ApiError, match=r"^limit-exceeded: .*characters"):
        service.check("regex", "a" * (1 << 20))


async def test_an_object_with_many_optional_members_is_no_bomb() -> None:
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer", "maximum": 9} for i in range(200)},
        "additionalProperties": False,
    }

    walk = Walk(await compiled("json-schema", json.dumps(schema)))
    for token in codec().encode('{"p7": 3, "p199": -12}'):
        assert token in await walk.allowed()
        (await walk.idle()).advance([token])
    assert walk.matcher.accepting


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_ends_in_an_error_or_in_small_steps(name: str) -> None:
    """Whatever a grammar is, the control thread is never held up, and every call comes back."""
    kind, text = BOMBS[name]
    longest = 0.0
    codes: list[str] = []

    try:
        walk = Walk(await compiled(kind, text))
        generator = random.Random(1)
        for _ in range(400):
            allowed = await walk.allowed()
            mask = await walk.mask()
            if mask.error is not None or not allowed:
                assert mask.error is not None
                return
            matcher = await walk.idle()
            started = time.thread_time()
            matcher.forced()
            matcher.advance([generator.choice(allowed)])
            longest = max(longest, time.thread_time() - started)
            if matcher.ended:
                return
    except ApiError as error:
        codes.append(error.code)
    assert codes in ([], ["limit-exceeded"], ["invalid-argument"])
    assert longest < 1  # far over what one step may take, far below a bomb


def name_in(ready: str) -> str:
    """Which of the tests' expressions a grammar is of that is ready to be compiled."""
    [name] = re.findall(r"/(slow\d|b|one|two|three)/", ready)
    return str(name)


def held_back(
    monkeypatch: pytest.MonkeyPatch, which: str
) -> tuple[GrammarService, list[str], threading.Event]:
    """A service that compiles the expressions that match once the event is set; what it has begun
    to compile.
    """
    busy, entered, go = GrammarService(GrammarConfig(), CONFINED), list[str](), threading.Event()
    compile_now = busy._compile_here

    def slow(*args: Any) -> Grammar:
        entered.append(name_in(args[-1]))
        if re.match(which, entered[-1]):
            assert go.wait(60)
        return compile_now(*args)

    monkeypatch.setattr(busy, "_compile_here", slow)
    return busy, entered, go


def test_a_user_has_one_thread_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, entered, go = held_back(monkeypatch, "slow")
    said: list[str] = []

    async def one(text: str, user: str) -> None:
        await compile_grammar(busy, model(), codec(), "regex", text, user)
        said.append(text)

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "slow1", "a")
            while not entered:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(one, "slow2", "a")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert entered == ["slow1"], "the second one has no thread"
            nursery.start_soon(one, "slow1", "a")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert entered == ["slow1"], "it goes on"
            await one("b", "b")
            assert said == ["b"]
            go.set()
        assert sorted(said) == ["b", "slow1", "slow1", "slow2"]
        assert entered == ["slow1", "b", "slow2"]
        assert not busy._counts
        assert not busy._under_way

    try:
        trio.run(test)
    finally:
        go.set()


async def test_what_nobody_wants_any_more_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.api.grammar.service.THREADS", 1)
    busy, entered, go = held_back(monkeypatch, "")
    async with trio.open_nursery() as nursery:
        for text in ("one", "two", "three"):
            nursery.start_soon(compile_grammar, busy, model(), codec(), "regex", text, "a")
            while not entered:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    go.set()
    while busy._under_way:
        await trio.sleep(0.001)
    assert entered == ["one"]
    assert len(busy) == 1
