"""What goes wrong halfway, and what is shared: nothing is lost, nothing leaks, and errors say what to do."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

from typing import Any

import pytest
from support.sdk_rig import BOS, FAILS, Rig, continuation

HEAD = f"""{FAILS}
import json
from inferlet import raw

def stats():
    return json.loads(raw.pool_stats(raw.create_queue(model.name)))
"""


def run(rig: Rig, body: str, *args: str) -> Any:
    return rig.answer(HEAD, body, *args)


def text(tokens: list[int]) -> str:
    return bytes(tokens).decode()


# Pages that a generation has allocated ahead

BROKEN_OFF = """
ctx = Context(model, prefix_cache=False).fill("x" * 200)
out = []
async for token in ctx.generate(max_tokens=400, run_ahead=False).stream_tokens():
    out.append(token)
    if len(out) == int(args[0]): break
"""


@pytest.mark.parametrize("count", [9, 17, 30])
def test_a_fork_after_a_generation_that_was_broken_off(rig: Rig, count: int) -> None:
    body = """
ahead = len(ctx.sequence.pages.addresses) * ctx.page_size - ctx.seq_len
forks = [ctx.fork(), ctx.fork()]
both = [await fork.generate(max_tokens=30).collect_tokens() for fork in forks]
own = await ctx.generate(max_tokens=30).collect_tokens()
late = await ctx.fork().generate(max_tokens=30).collect_tokens()
for one in (ctx, *forks): one.release()
return [out, both, own, late, ahead >= ctx.page_size, stats()["kv_pages_mine"], model.shared_pages]
"""
    start = [BOS, *b"x" * 200]
    tokens = continuation(start, count + 60)
    then = tokens[count : count + 30]
    expected = [tokens[:count], [then, then], then, tokens[count + 30 :], True, 0, {}]
    assert run(rig, BROKEN_OFF + body, str(count)) == expected


@pytest.mark.parametrize("count", [7, 9, 16, 18])
def test_a_save_after_a_generation_that_was_broken_off(rig: Rig, count: int) -> None:
    body = """
await ctx.flush()
ctx.save("kept")
own = await ctx.generate(max_tokens=20).collect_tokens()
opened = Context.take(model, "kept").append([97])
return [out, own, await opened.generate(max_tokens=20).collect_tokens()]
"""
    start = [BOS, *b"x" * 200]
    tokens = continuation(start, count + 20)
    opened = continuation([*start, *tokens[:count], 97], 20)
    assert run(rig, BROKEN_OFF + body, str(count)) == [tokens[:count], tokens[count:], opened]


# Failures halfway


class FailingForward:
    """Kinds of batches that fail at the worker: one forward, after so many others."""

    def __init__(self, others: int) -> None:
        self.left = others + 1

    def __contains__(self, kind: str) -> bool:
        self.left -= kind == "forward"
        return kind == "forward" and self.left == 0


READS = {
    "flush": "await ctx.flush()",
    "distribution": "await ctx.distribution(3)",
    "distributions": "await ctx.forward([98, 99], k=3)",
    "steps": "await ctx.generate(max_tokens=4, run_ahead=False).collect_tokens()",
    "own": "await ctx.generate(choose=lambda tokens, _: tokens[0], max_tokens=4).collect_tokens()",
    "run": "await ctx.generate(max_tokens=4).collect_tokens()",
    "text": "await ctx.generate(max_tokens=4).collect_text()",
}
THEN = {
    "go on": "",
    "flush": "await ctx.flush()",
    "fork": "ctx = ctx.fork()",
    "truncate": "ctx.truncate(10); ctx.append(list(b'kl'))",
    "discard": "ctx.sequence.discard()",
    "hide": "await ctx.flush(); ctx.hide(2, 2)",
}


# Each with half of the others, in turn.
READ_AND_THEN = [
    (read, then)
    for first, read in enumerate(READS)
    for second, then in enumerate(THEN)
    if (first + second) % 2
]


@pytest.mark.parametrize(("read", "then"), READ_AND_THEN)
def test_what_a_failed_forward_was_to_run_waits_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, read: str, then: str
) -> None:
    """The worker fails; who goes on has the same tokens, and the model sees them all."""
    body = f"""
ctx = Context(model, prefix_cache=False, add_bos=False).fill("abcdefghij")
await ctx.flush()
other = ctx.fork().append([107])
ctx.append([107, 108])
async def read(): {READS[read]}
error = await fails(read)
before = ctx.tokens
{THEN[then]}
return [error, before, await ctx.generate(max_tokens=5).collect_tokens(), await other.generate(max_tokens=5).collect_tokens()]
"""
    monkeypatch.setattr(rig.worker, "fail_kinds", FailingForward(1))
    error, before, tokens, other = run(rig, body)
    assert "told to fail" in error
    start = [*b"abcdefghijkl"]
    assert before == start
    assert tokens == continuation(start, 5)
    assert other == continuation(start[:11], 5)


@pytest.mark.parametrize("then", ["fork", "truncate", "go on", "save"])
@pytest.mark.parametrize("read", ["distribution", "run", "text"])
def test_a_forward_that_fails_after_its_read_was_cancelled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, read: str, then: str
) -> None:
    """The next call says so, and then it goes on: a fork never begins with what has not run."""
    body = f"""
async def read(): {READS[read]}
ctx = Context(model, prefix_cache=False, add_bos=False).fill("abcdefghij")
await ctx.flush()
ctx.append([107, 108])
task = asyncio.create_task(read())
await asyncio.sleep(0)
task.cancel()
await asyncio.wait([task])
async def go(ctx): return await ctx.generate(max_tokens=5).collect_tokens()
async def then():
    if args[0] == "fork": return await go(ctx.fork())
    if args[0] == "save": ctx.save("never")
    if args[0] == "truncate": ctx.truncate(11); ctx.append([108])
    return await go(ctx)
return [await fails(then), await then() if args[0] != "save" else await go(ctx)]
"""
    monkeypatch.setattr(rig.worker, "fail_kinds", FailingForward(1))
    error, tokens = run(rig, body, then)
    assert "told to fail" in error
    assert tokens == continuation([*b"abcdefghijkl"], 5)


def test_a_token_that_could_not_run_still_waits(rig: Rig) -> None:
    body = """
ctx = Context(model, add_bos=False).append([97] * 8)
out = await ctx.generate(max_tokens=1, run_ahead=False).collect_tokens()
queue = raw.create_queue(model.name)
count = stats()["kv_pages_free"]
start = raw.alloc_kvpage(queue, count)
error = await fails(lambda: ctx.generate(max_tokens=3).collect_tokens())
kept = [ctx.tokens, ctx.buffer()]
raw.dealloc_kvpage(queue, [start, count])
while not stats()["kv_pages_free"]: await asyncio.sleep(0.001)
out += await ctx.generate(max_tokens=9).collect_tokens()
return [error.split(":")[1].strip(), *kept, out]
"""
    tokens = continuation([97] * 8, 10)
    kept = [[97] * 8 + tokens[:1], tokens[:1]]
    assert run(rig, body) == ["out-of-resources", *kept, tokens]


def test_embeds_of_a_failed_forward_are_freed(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("abc").append([10**6])
errors = [await fails(ctx.flush) for _ in range(3)]
held = stats()["embeds_mine"]
ctx.release()
return [held, stats()["embeds_mine"], errors]
"""
    held, left, errors = run(rig, body)
    assert (held, left) == (1, 0)
    assert all("invalid-argument" in error for error in errors)


def test_a_page_that_could_not_be_filled_by_a_copy_is_freed(rig: Rig) -> None:
    body = """
ctx = Context(model, prefix_cache=False, add_bos=False).append([97] * 30)
await ctx.flush()
ctx = ctx.fork()  # which copies the page that it writes to
held = [stats()["kv_pages_mine"]]
ctx.truncate(21)
ctx.append([98])
copy = raw.copy_kvpage
def fails_to_copy(*_): raise PieError("limit-exceeded: too many commands")
raw.copy_kvpage = fails_to_copy
errors = [await fails(ctx.flush) for _ in range(3)]
raw.copy_kvpage = copy
held.append(stats()["kv_pages_mine"])
return [errors, held, await ctx.generate(max_tokens=9).collect_tokens()]
"""
    errors, held, tokens = run(rig, body)
    assert all("limit-exceeded" in error for error in errors)
    assert held[1] < held[0]
    assert tokens == continuation([*[97] * 21, 98], 9)


def test_two_generations_of_one_context_at_once(rig: Rig) -> None:
    """The second raises, whatever it is read by; what the first gives is right."""
    body = """
def go(ctx, how):
    generator = ctx.generate(max_tokens=6)
    if how == "text": return generator.collect_text()
    if how == "tokens": return generator.collect_tokens()
    async def steps(): return [(await step.execute()).tokens async for step in generator]
    return steps()
out = []
for first in ("text", "tokens", "steps"):
    for second in ("text", "tokens", "steps"):
        ctx = Context(model).fill("ab")
        one, two = await asyncio.gather(go(ctx, first), go(ctx, second), return_exceptions=True)
        out.append([one, f"{type(two).__name__}: {two}", await ctx.generate(max_tokens=2).collect_tokens()])
return out
"""
    tokens = continuation([BOS, *b"ab"], 8)
    firsts = [text(tokens[:6]), tokens[:6], [[token] for token in tokens[:6]]]
    answers = run(rig, body)
    assert [one for one, _, _ in answers] == [first for first in firsts for _ in range(3)]
    for _, error, after in answers:
        assert error.startswith("RuntimeError: a generation of this context is under way")
        assert "ctx.fork()" in error
        assert after == tokens[6:]


def test_a_generation_that_another_one_has_followed(rig: Rig) -> None:
    """It was given up: a new one may begin, and then the old one does not go on."""
    body = """
ctx = Context(model).fill("ab")
old = ctx.generate(max_tokens=9)
out = []
async for token in old.stream_tokens():
    out.append(token)
    if len(out) == 3: break
out += await ctx.generate(max_tokens=3).collect_tokens()
async def loop():
    async for step in old: await step.execute()
errors = [await fails(call) for call in (old.collect_tokens, old.collect_text, loop, lambda: old.accept([97]))]
return [out, errors, ctx.tokens]
"""
    tokens = continuation([BOS, *b"ab"], 6)
    out, errors, held = run(rig, body)
    assert (out, held) == (tokens, [BOS, *b"ab", *tokens])
    for error in errors:
        assert error.startswith("RuntimeError: another generation of this context has begun")


@pytest.mark.parametrize("sampler", ["None", "Sampler(temperature=0)"])
def test_a_step_that_does_nothing(rig: Rig, sampler: str) -> None:
    """Its loop would never end, so the next one raises; `accept` and a failed `execute` are something."""
    body = """
async def forgetful():
    async for step in Context(model).fill("ab").generate(SAMPLER, max_tokens=3):
        await step.distribution(2)
async def careful():
    ctx = Context(model).fill("ab")
    generator = ctx.generate(SAMPLER, max_tokens=3)
    async for step in generator:
        if generator.tokens_generated == 1:
            generator.accept([120])
            continue
        task = asyncio.create_task(step.execute())
        await asyncio.sleep(0)
        if generator.tokens_generated == 2 and not task.done() and task.cancel():
            await asyncio.wait([task])
            break
        await task
    return ctx.tokens[3:5]
return [await fails(forgetful), await careful()]
"""
    error, tokens = run(rig, body.replace("SAMPLER", sampler))
    assert error.startswith("RuntimeError: the step before did nothing")
    assert "execute" in error
    assert "accept" in error
    assert tokens == [continuation([BOS, *b"ab"], 1)[0], 120]


def test_a_context_longer_than_the_model_takes(rig: Rig) -> None:
    body = """
long = lambda n: Context(model, add_bos=False).append([97] * n)
most = model.max_position
generator = long(most + 1).generate(max_tokens=5)
return [
    await fails(lambda: long(most + 1).flush()),
    await fails(lambda: long(most + 1).generate(max_tokens=5).collect_text()),
    await fails(generator.collect_tokens),
    await fails(generator.collect_tokens),
    await long(most).generate(max_tokens=5).collect_tokens(),
    len(await long(most - 2).generate(max_tokens=5).collect_tokens()),
]
"""
    flushed, *errors, full, two = run(rig, body)
    assert flushed.startswith("PieError: invalid-argument: ")
    for error in errors:
        assert error.startswith("PieError: invalid-argument: the context has 2049 tokens")
        assert "2048" in error
        assert "shorten" in error
    assert (full, two) == ([], 2)


# Options


def test_wrong_and_unusual_options(rig: Rig) -> None:
    body = """
def go(sampler=None, **options): return Context(model).fill("ab").generate(sampler, max_tokens=40, **options)
async def steps(generator): return [(await step.execute()).tokens async for step in generator]
warm = Sampler.top_p(1.0, 0.9)
return [
    await fails(lambda: Context(model).generate(max_tokens=-1)),
    await fails(lambda: Context(model).generate(stop=["a", 1.5])),
    [await go(warm, seed=seed).collect_text() for seed in (-1, 2**64 - 1, 2**65 - 1)],
    [await steps(go(warm, seed=seed)) for seed in (-1, 2**64 - 1, 1)],
    [await go(stop=stop).collect_text() for stop in (args[0], [args[0]])],
]
"""
    tokens = continuation([BOS, *b"ab"], 40)
    word = text(tokens[5:8])
    negative, wrong, seeds, stepped, stops = run(rig, body, word)
    assert negative == "ValueError: max_tokens -1 is negative"
    assert wrong == "TypeError: stop: 1.5 is neither a token's id nor a text"
    assert len(set(seeds)) == 1
    assert stepped[0] == stepped[1] != stepped[2]
    assert stops == [text(tokens[: text(tokens).index(word)])] * 2


# Text


@pytest.mark.parametrize("where", ["inferlet", "server"])
def test_steps_give_out_what_stop_strings_held_back(rig: Rig, where: str) -> None:
    body = """
sampler = Sampler(temperature=0) if args[1] == "server" else None
out = []
for options in (dict(max_tokens=8, stop=[args[0]]), dict(max_tokens=40, stop=[args[0], int(args[2])])):
    pieces = ""
    async for step in Context(model).fill("ab").generate(sampler, **options):
        pieces += (await step.execute()).text
    out.append(pieces)
return out
"""
    tokens = continuation([BOS, *b"ab"], 40)
    end = next(i for i in range(5, 40) if tokens[i] not in tokens[:i])
    held = text(tokens[end - 3 : end]) + "!"  # the text ends with its beginning, in both ways
    eight = text(tokens[5:8]) + "!"
    assert run(rig, body, eight, where, str(tokens[end]))[0] == text(tokens[:8])
    assert run(rig, body, held, where, str(tokens[end]))[1] == text(tokens[:end])


@pytest.mark.parametrize("where", ["inferlet", "server"])
def test_stop_strings_are_found_in_tokens_of_the_program(rig: Rig, where: str) -> None:
    body = """
sampler = Sampler(temperature=0) if args[0] == "server" else None
generator = Context(model).fill("ab").generate(sampler, max_tokens=40, stop=["END"])
out = []
async for step in generator:
    out += [generator.accept(list(piece)) for piece in (b"xEN", b"Dyz", b"z")]
out += [generator.is_done, await generator.collect_text()]
generator = Context(model).fill("ab").generate(sampler, max_tokens=7, stop=["END"])
pieces = []
async for step in generator:
    if not pieces: generator.accept(list(b"xyE"))
    pieces.append((await step.execute()).text)
return [*out, pieces]
"""
    *accepted, done, rest, pieces = run(rig, body, where)
    assert accepted == [[*b"xEN"], [*b"D"], []]
    assert (done, rest) == (True, "")
    tokens = continuation([BOS, *b"abxyE"], 4)
    assert pieces == ["E" + chr(tokens[0]), *map(chr, tokens[1:])]


def test_text_after_tokens(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("ab")
generator = ctx.generate(max_tokens=10)
out = [generator.accept(list(args[0].encode())), await generator.collect_text()]
generator = ctx.generate(max_tokens=10)
async for token in generator.stream_tokens():
    break
out += [chr(token), await generator.collect_text(), await generator.collect_text()]
return out
"""
    start = [BOS, *b"ab", *b"xy"]
    tokens = continuation(start, 18)
    first, second = text(tokens[:8]), text(tokens[8:])
    assert run(rig, body, "xy") == [[*b"xy"], first, second[0], second[1:], ""]


# Grammars


def test_a_grammar_is_compiled_once_for_all_who_use_it_first(rig: Rig) -> None:
    body = """
async def go(): return await Context(model).fill("ab").generate(grammar=Grammar.regex("[xy]{3}")).collect_text()
calls, compile = [], raw.compile_grammar
def counted(*key):
    calls.append(key)
    return compile(*key)
raw.compile_grammar = counted
texts = await asyncio.gather(*(go() for _ in range(80)))
once = len(calls)
bad = await asyncio.gather(*(Grammar.regex("(").compile(model) for _ in range(3)), return_exceptions=True)
lost = asyncio.create_task(Grammar.regex("z+").compile(model))
others = [asyncio.create_task(Grammar.regex("z+").compile(model)) for _ in range(3)]
await asyncio.sleep(0)
lost.cancel()
handles = await asyncio.gather(*others)
return [len(set(texts)), len(texts[0]), once, [e.code for e in bad], lost.cancelled(), len(set(handles))]
"""
    assert run(rig, body) == [1, 3, 1, ["invalid-argument"] * 3, True, 1]


def test_a_cancelled_step_ends_a_generation_within_a_grammar(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("ab")
grammar = Grammar.regex("(xy|yz|zx){9}")
generator = ctx.generate(grammar=grammar, forced=False, max_tokens=30)
out = []
async for step in generator:
    if len(out) < 3:
        out += (await step.execute()).tokens
        continue
    task = asyncio.create_task(step.execute())
    for _ in range(int(args[0])): await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    break
before = ctx.tokens
error = [await fails(generator.collect_tokens), await fails(generator.collect_text), await fails(lambda: generator.accept([120]))]
again = await ctx.generate(grammar=Grammar.regex("[xy]{4}")).collect_text()
return [task.cancelled(), len(out), before[3:] == out, generator.is_complete, error, len(again)]
"""
    for turns in (1, 2):
        cancelled, count, kept, complete, errors, again = run(rig, body, str(turns))
        assert (cancelled, count, kept, complete, again) == (True, 3, True, False, 4)
        for error in errors:
            assert error.startswith("RuntimeError: a step of this generation was cancelled")
            assert "begin a new generation" in error
