"""Several tokens in one forward, scores, branches, and contexts opened one behind the other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.sdk_rig import BOS, PAGE_SIZE, VOCABULARY, Rig, continuation, next_token

HEAD = """
import asyncio, json
from inferlet import *
from inferlet import raw, runtime, session
model = Model.load()
"""


def run(rig: Rig, body: str, *args: str) -> Any:
    return rig.answer(HEAD, body, *args)


@pytest.mark.parametrize("filled", [1, 7, 8, 70, 130])
def test_forward_tells_what_follows_each_token(rig: Rig, filled: int) -> None:
    body = """
ctx = Context(model, add_bos=False).fill("x" * int(args[0]))
found = await ctx.forward(b"some draft tokens", 2)
ctx.truncate(int(args[0]) + 4)
after = await ctx.generate(max_tokens=9).collect_tokens()
return [[d.tokens for d in found], after, len(ctx)]
"""
    text = [*b"x" * filled, *b"some draft tokens"]
    found, after, length = run(rig, body, str(filled))
    ends = range(filled + 1, len(text) + 1)
    assert found == [[next_token(text[:n]), next_token(text[:n], 1)] for n in ends]
    assert after == continuation(text[: filled + 4], 9)
    assert length == filled + 4 + 9


def test_verify_keeps_what_greedy_decoding_would_write(rig: Rig) -> None:
    body = """
ctx = Context(model, add_bos=False).fill("some text")
right = [int(token) for token in args]
wrong = [*right[3:6], 0, *right[7:9]]
found = [await ctx.verify(right[:2]), await ctx.verify(wrong), await ctx.verify([])]
length = ctx.seq_len, ctx.buffer()
ctx.truncate(9)
task = asyncio.create_task(ctx.verify(right[:3]))
await asyncio.sleep(0)
task.cancel()
await asyncio.gather(task, return_exceptions=True)
return [found, length, ctx.tokens, await ctx.verify(right[:1])]
"""
    wanted = continuation([*b"some text"], 10)
    found, length, tokens, again = run(rig, body, *map(str, wanted))
    assert found == [wanted[:3], wanted[3:7], wanted[7:8]]
    assert length == [9 + 7, wanted[7:8]]
    assert tokens == [*b"some text"]
    assert again == wanted[:2]


def test_forward_of_many_tokens_takes_several_forwards(rig: Rig) -> None:
    body = """
found = await Context(model).fill("ab").forward(b"cd" * 100, 1)
return [d.tokens[0] for d in found]
"""
    text = [BOS, *b"ab", *b"cd" * 100]
    assert run(rig, body) == [next_token(text[:n]) for n in range(4, 204)]


@pytest.mark.parametrize("prompt", ["a", "eight by", "longer than a page"])
def test_score(rig: Rig, prompt: str) -> None:
    body = """
ctx = Context(model, add_bos=False).fill(args[0])
texts = [list(b"yes"), list(b"no, it is not"), [256]]
both = await ctx.score(texts), await ctx.score(["yes"])
return [*both, len(ctx), await ctx.generate(max_tokens=3).collect_tokens()]
"""
    before = len(rig.worker.sizes)
    logs, again, length, after = run(rig, body, prompt)
    total = sum(math.exp(-rank / 4) for rank in range(VOCABULARY))
    for found, text in zip(logs, [b"yes", b"no, it is not", [256]], strict=True):
        context = list(prompt.encode())
        for number, token in zip(found, text, strict=True):
            ranks = [rank for rank in range(VOCABULARY) if next_token(context, rank) == token]
            assert number == pytest.approx(-ranks[0] / 4 - math.log(total), abs=1e-3)
            context.append(token)
    assert again == logs[:1]
    assert "next_dist" not in [kind for kind, *_ in rig.worker.sizes[before:]]  # of one token each
    assert length == len(prompt)
    assert after == continuation(list(prompt.encode()), 3)


def test_score_refuses_what_has_no_probability(rig: Rig) -> None:
    body = """
try:
    await Context(model).fill("a").score(["b", ""])
except ValueError as error:
    first = str(error)
try:
    await Context(model).score(["b"])
except ValueError as error:
    return [first, str(error)]
"""
    empty, nothing = run(rig, body)
    assert "empty continuation" in empty
    assert "fill something" in nothing


def test_a_fork_that_goes_on_with_another_token_runs_that_alone(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("some text before")
await ctx.flush()
forks = [ctx.fork().append([token]) for token in b"abc"]
return [await f.generate(max_tokens=4).collect_tokens() for f in forks]
"""
    before = rig.worker.forwards
    found = run(rig, body)
    text = [BOS, *b"some text before"]
    assert found == [continuation([*text, token], 4) for token in b"abc"]
    assert rig.worker.forwards - before <= 1 + 3 * 5


def test_join(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("a text")
await ctx.flush()
one, two = ctx.fork().fill(" one"), ctx.fork().fill(" and two")
await gather(one.flush(), two.flush())
pages = one.sequence.facts()["pages"]
joined = ctx.join(one, two)
kept = joined.sequence.facts()["pages"] == pages
return [kept, joined.tokens, await joined.generate(max_tokens=3).collect_tokens()]
"""
    text = [BOS, *b"a text one and two"]
    assert run(rig, body) == [True, text, continuation(text, 3)]


def test_join_refuses_what_is_no_fork(rig: Rig) -> None:
    body = """
try:
    Context(model).fill("a text").join(Context(model).fill("another text"))
except ValueError as error:
    return [str(error)]
"""
    assert "forks of the context" in run(rig, body)[0]


def test_race_stops_the_others(rig: Rig) -> None:
    body = """
ended = []
async def branch(number):
    try:
        await runtime.sleep(0.001 * number)
        return number
    finally:
        ended.append(number)
found = await race(*map(branch, (1, 2, 1000, 2000)), good=lambda n: n > 1)
none = await race(*map(branch, (1, 2)), good=lambda n: n > 5)
async def fails():
    raise ValueError("mine")
try:
    await gather(branch(3000), fails())
except ValueError as error:
    return [found, none, sorted(ended), str(error)]
"""
    assert run(rig, body) == [2, None, [1, 1, 2, 2, 1000, 2000, 3000], "mine"]


@pytest.mark.parametrize("lengths", [(8, 16), (8, 3, 4), (5, 11), (3, 3, 3)])
def test_saved_contexts_open_one_behind_the_other(rig: Rig, lengths: tuple[int, ...]) -> None:
    """What the model makes of them is held by tests/inferlets, with a real one."""
    body = """
parts, at = [], 0
for length in map(int, args):
    part = Context(model, add_bos=False, first_position=at).append(range(10 + at, 10 + at + length))
    part.sequence.forward(part.sequence.pending, output=False)
    part.sequence.pending = []
    await part.flush()
    part.save(str(at))
    parts.append(str(at))
    at += length
whole = Context.open(model, *parts)
used = raw.kvpage_used(whole.queue, [n for p in whole.sequence.pages.addresses for n in (p, 1)])
missing = Context.open(model, "0", "missing")
for name in parts:
    Context.delete(model, name)
return [missing, len(whole), used, whole.next_position]
"""
    missing, length, used, position = run(rig, body, *map(str, lengths))
    assert missing is None
    assert length == position == sum(used) == sum(lengths)
    assert all(count == PAGE_SIZE for count in used[:-1])  # no gap where two meet


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ctx.forward([1, 2], parents=[-1, 1])", "must be an earlier one"),
        ("ctx.forward([1, 2], parents=[-1])", "for all of 2 tokens"),
        ("ctx.forward([1], mask=[[(0, 9)]])", "beyond 3"),
        ("ctx.forward([1], positions=[1, 2])", "for all of 1 tokens"),
    ],
)
def test_forward_refuses_arguments_that_disagree(rig: Rig, call: str, message: str) -> None:
    body = f"""
ctx = Context(model, add_bos=False).fill("ab")
try:
    await {call}
except ValueError as error:
    return [str(error), await ctx.generate(max_tokens=2).collect_tokens()]
"""
    text, after = run(rig, body)
    assert message in text
    assert after == continuation([*b"ab"], 2)


@pytest.mark.parametrize("call", ["drop(0, 5)", "drop(0, 24)", "hide(0, 99)", "keep(3, [2, 1])"])
def test_edits_refuse_what_is_not_there(rig: Rig, call: str) -> None:
    body = f"""
ctx = Context(model).fill("a text of some length")
await ctx.flush()
try:
    ctx.{call}
except ValueError as error:
    return [str(error), len(ctx)]
"""
    message, length = run(rig, body)
    assert message
    assert length == 1 + len("a text of some length")
    assert length % PAGE_SIZE
