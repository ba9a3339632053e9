"""Contexts: whatever their pages went through, the model sees exactly their tokens."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.sdk_rig import BOS, END, Rig, continuation, next_token

HEAD = """
import asyncio, json
from inferlet import *
from inferlet import raw, runtime, session
model = Model.load()
"""


def run(rig: Rig, body: str, *args: str) -> Any:
    return rig.answer(HEAD, body, *args)


def text(tokens: list[int]) -> str:
    return bytes(tokens).decode()


@pytest.mark.parametrize("length", [1, 7, 8, 64, 200])
def test_greedy_generation(rig: Rig, length: int) -> None:
    prompt = ("the quick brown fox " * 20)[:length]
    answer = run(
        rig,
        "ctx = Context(model).fill(args[0])\n"
        "out = await ctx.generate(max_tokens=20).collect_text()\n"
        "return [out, ctx.tokens, ctx.seq_len, ctx.buffer()]",
        prompt,
    )
    tokens = [BOS, *prompt.encode()]
    expected = continuation(tokens, 20)
    # The last token is not in the pages yet: nobody has asked for what follows it.
    assert answer == [text(expected), tokens + expected, len(tokens) + 19, expected[-1:]]


def test_bos_token(rig: Rig) -> None:
    body = """
plain = Context(model, add_bos=False).fill("ab").fill("c").tokens
written = Context(model).fill("<bos>ab").tokens
return [plain, written, Context(model).append([1]).fill("a").tokens, Context(model).fill("").tokens]
"""
    assert run(rig, body) == [[97, 98, 99], [BOS, 97, 98], [1, 97], [BOS]]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("Context(model, first_position=-1)", "-1 is not within 0 to 4294967295"),
        ("Context(model, first_position=2**32)", "4294967296 is not within 0 to 4294967295"),
        ("Context(model).append([1, -1])", "of a list is not within 0 to 4294967295"),
        ("Context(model).append([2**40])", "of a list is not within 0 to 4294967295"),
        ("Context('pie-tiny')", "model='pie-tiny': `Model.load(name)` is wanted"),
        ("await Context(model).fill('a').score('yes')", "continuations='yes': a list of texts is"),
        ("await model.encode('yes')", "inputs='yes': a list of texts is wanted"),
        ("raw.launch('a', 'yes')", "texts='yes': a list of texts is wanted"),
        ("layers.steer('up', at=[1])", "could not convert string to float: 'up'"),
    ],
)
def test_arguments_that_are_none_are_named(rig: Rig, call: str, problem: str) -> None:
    body = f"""
from inferlet import layers
try:
    context = {call}
    context.fill("ab")
    await context.flush()
    return ["taken"]
except Exception as error:
    return [str(error)]
"""
    assert problem in run(rig, body)[0]


def test_forks_share_and_differ(rig: Rig) -> None:
    body = """
ctx = Context(model).fill(args[0])
await ctx.flush()
before = json.loads(raw.pool_stats(ctx.queue))["kv_pages_free"]
forks = [ctx.fork() for _ in range(6)]
async def go(n, fork):
    fork.fill(str(n))
    out = await fork.generate(max_tokens=10).collect_text()
    child = fork.fork()
    return [out, await child.generate(max_tokens=3).collect_text()]
out = await asyncio.gather(*(go(n, f) for n, f in enumerate(forks)))
used = before - json.loads(raw.pool_stats(ctx.queue))["kv_pages_free"]
own = await ctx.generate(max_tokens=5).collect_text()
for f in forks: f.release()
ctx.release(); ctx.release()
left = json.loads(raw.pool_stats(raw.create_queue(model.name)))
return [out, own, used, left["kv_pages_mine"], left["embeds_mine"], model.shared_pages]
"""
    prompt = "x" * 100
    out, own, used, pages, embeds, shared = run(rig, body, prompt)
    tokens = [BOS, *prompt.encode()]
    for number, (first, second) in enumerate(out):
        expected = continuation([*tokens, *str(number).encode()], 13)
        assert [first, second] == [text(expected[:10]), text(expected[10:])]
    assert own == text(continuation(tokens, 5))
    assert used <= 6 * 4  # of 13 pages each
    assert (pages, embeds, shared) == (0, 0, {})


def test_a_saved_fork_and_its_origin_leave_each_other_alone(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("abcdefghij")
await ctx.flush()
fork, other = ctx.fork(), ctx.fork()
ctx.fill("xyz")
await ctx.flush()
fork.save("of a fork")
fork.fill("!")
await fork.flush()
saved = Context.open(model, "of a fork")
Context.delete(model, "of a fork")
other.save("of another")
Context.delete(model, "of another")
all = [ctx, fork, other]
return [saved.seq_len, *[[c.seq_len, await c.generate(max_tokens=6).collect_tokens()] for c in all]]
"""
    head = [BOS, *b"abcdefghij"]
    length, *found = run(rig, body)
    assert length == len(head)
    expected = [[*head, *b"xyz"], [*head, *b"!"], head]
    assert found == [[len(tokens), continuation(tokens, 6)] for tokens in expected]


def test_pages_are_freed_when_a_context_is_dropped(rig: Rig) -> None:
    body = """
def mine(): return json.loads(raw.pool_stats(queue))["kv_pages_mine"]
queue = raw.create_queue(model.name)
async def use():
    ctx = Context(model).fill("x" * 50)
    await ctx.flush()
    with ctx.fork() as fork:
        await fork.generate(max_tokens=3).collect_text()
    return mine()
return [await use(), mine()]
"""
    assert run(rig, body) == [7, 0]


def test_a_cut_in_a_page_of_its_own_copies_nothing(rig: Rig) -> None:
    """Only a page that others see is copied: of a fork, saved, or in the prefix cache."""
    body = """
copies, copy = [], raw.copy_kvpage
def counted(*span):
    copies.append(span)
    return copy(*span)
raw.copy_kvpage = counted
async def cut(ctx, length):
    before = len(copies)
    ctx.truncate(length).append([122])
    return [await ctx.generate(max_tokens=3).collect_tokens(), len(copies) - before]
def make(**options): return Context(model, add_bos=False, **options).fill("abcdefghijklmnopqrst")
out = []
for length in (0, 1, 7, 8, 9, 15, 16, 17, 19):
    ctx = make(prefix_cache=False)
    await ctx.flush()
    out.append(await cut(ctx, length))
    out.append(await cut(ctx, length))  # and again, over what was generated
ctx = make(prefix_cache=False)
await ctx.flush()
fork = ctx.fork()
shared = [await cut(ctx, 18), await fork.generate(max_tokens=3).collect_tokens()]
fork.release()
shared.append(await cut(ctx, 18))
ctx = make(prefix_cache=False)
await ctx.flush()
ctx.save("cut")
shared += [await cut(ctx, 18), await cut(ctx, 10)]
shared.append(await cut(Context.take(model, "cut"), 11))
ctx = make()
await ctx.flush()
shared += [await cut(ctx, 18), await cut(ctx, 12)]
raw.copy_kvpage = copy
return [out, shared]
"""
    start = [*b"abcdefghijklmnopqrst"]

    def after(length: int) -> list[int]:
        return continuation([*start[:length], 122], 3)

    own, shared = run(rig, body)
    assert own == [[after(n), 0] for n in (0, 1, 7, 8, 9, 15, 16, 17, 19) for _ in range(2)]
    forked = [[after(18), 1], continuation(start, 3), [after(18), 0]]
    saved = [[after(18), 1], [after(10), 1], [after(11), 1]]
    assert shared == [*forked, *saved, [after(18), 0], [after(12), 1]]


def test_a_saved_context_ends_by_itself(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("some text")
await ctx.flush()
ctx.retain(5, 60).retain(-5, last=4)
ctx.save("short", seconds=0.01)
ctx.save("long", seconds=60)
try:
    ctx.save("none", seconds=0)
except PieError as error:
    code = error.code
await runtime.sleep(0.05)
return [Context.saved(model), code, Context.open(model, "short")]
"""
    assert rig.answer(HEAD, body) == [["long"], "invalid-argument", None]


def test_save_and_open_between_instances(rig: Rig) -> None:
    body = """
name = "prefix"
with Context(model).fill("y" * 20) as ctx:
    await ctx.flush()
    ctx.save(name)
    own = await ctx.generate(max_tokens=4).collect_text()
opened = Context.open(model, name).fill("!")
out = await opened.generate(max_tokens=12).collect_text()
again = await Context.take(model, name).fill("!").generate(max_tokens=12).collect_text()
return [own, out, again, Context.saved(model), Context.open(model, name), opened.seq_len]
"""
    tokens = [BOS, *b"y" * 20]
    own = text(continuation(tokens, 4))
    out = text(continuation([*tokens, *b"!"], 12))
    assert run(rig, body) == [own, out, out, [], None, 33]


def test_errors_of_contexts(rig: Rig) -> None:
    body = """
async def fails(call):
    try:
        answer = call()
        if asyncio.iscoroutine(answer): await answer
    except (ValueError, OverflowError, PieError) as e:
        return f"{type(e).__name__}: {e}"
ctx = Context(model).fill("ab")
empty = Context(model)
gone = Context(model).fill("a"); gone.release()
return [
    await fails(lambda: ctx.save("x")),
    await fails(lambda: empty.save("x")),
    await fails(lambda: empty.generate(max_tokens=1).collect_text()),
    await fails(lambda: ctx.truncate(99)),
    await fails(lambda: ctx.append([-1])),
    await fails(lambda: gone.flush()),
    await fails(lambda: gone.fork()),
    await fails(lambda: Context.delete(model, "nothing")),
    await fails(lambda: ctx.append([10**6]).flush()),
]
"""
    out = run(rig, body)
    for answer, part in zip(
        out,
        [
            "flush",
            "empty context",
            "fill something",
            "outside this context",
            "OverflowError",
            "released",
            "the context is released",
            "not-found",
            "invalid-argument",
        ],
        strict=True,
    ):
        assert part in answer


def test_stops(rig: Rig) -> None:
    tokens = [BOS, *b"ab"]
    expected = continuation(tokens, 40)
    word = text(expected[5:8])
    body = """
def ctx(): return Context(model).fill("ab")
token = int(args[1])
out = []
a = ctx(); out.append([await a.generate(max_tokens=40, stop=[args[0]]).collect_text(), len(a.tokens)])
b = ctx(); out.append([await b.generate(max_tokens=40, stop=[token]).collect_tokens(), len(b.tokens)])
pieces = [t async for t in ctx().generate(max_tokens=40, stop=[args[0], token]).stream_text()]
out.append(pieces)
steps = []
generator = ctx().generate(max_tokens=40, stop=[args[0]])
async for step in generator:
    steps.append((await step.execute()).tokens)
out.append([len(steps), generator.is_done, generator.tokens_generated])
return out
"""
    by_text, by_token, both, steps = run(rig, body, word, str(expected[9]))
    at = text(expected).index(word)
    assert by_text == [text(expected[:at]), len(tokens) + at + 3]
    first = expected.index(expected[9])
    assert by_token == [expected[:first], len(tokens) + first]
    assert "".join(both) == text(expected[: min(at, first)])
    assert steps == [at + 3, True, at + 3]


def test_distribution_and_accept(rig: Rig) -> None:
    body = """
ctx = Context(model).fill("ab")
d = await ctx.distribution(5)
again = await ctx.distribution(1)
generator = ctx.generate(max_tokens=3)
chosen = []
async for step in generator:
    dist = await step.distribution(4)
    chosen += generator.accept([dist.tokens[1]])
return [d.tokens, again.tokens, chosen, await ctx.generate(max_tokens=2).collect_tokens(), len(d), d.max_index() == d.tokens[0]]
"""
    tokens = [BOS, *b"ab"]
    five = [next_token(tokens, rank) for rank in range(5)]
    chosen: list[int] = []
    for _ in range(3):
        chosen.append(next_token([*tokens, *chosen], 1))
    after = continuation([*tokens, *chosen], 2)
    assert run(rig, body) == [five, five[:1], chosen, after, 5, True]


def test_seeds_repeat(rig: Rig) -> None:
    body = """
async def go(**options):
    return await Context(model).fill("ab").generate(Sampler.top_p(1.0, 0.9), max_tokens=30, **options).collect_text()
return [await go(seed=1), await go(seed=1), await go(seed=2), await go(), await go()]
"""
    one, again, two, three, four = run(rig, body)
    assert one == again
    assert len({one, two, three, four}) == 4


def test_chat(rig: Rig) -> None:
    body = """
ctx = Context(model)
ctx.system("be brief").user(" hi ")
first = await ctx.generate(max_tokens=4).collect_text()
ctx.user("more")
start = ctx.tokens
second = await ctx.generate(max_tokens=2).collect_text()
fork = ctx.fork().user("x")
plain = Context(model).user("a").assistant("b").user("c").cue()
sealed = Context(model).user("a").cue().append([120]).seal().user("b")
return [model.tokenizer.decode(start), first, second, model.tokenizer.decode(fork.tokens),
        model.tokenizer.decode(plain.tokens), model.tokenizer.decode(sealed.tokens)]
"""
    start, first, second, fork, plain, sealed = run(rig, body)
    head = "<bos><system>be brief<end><user>hi<end><assistant>"
    assert start == f"{head}{first}<end><user>more<end>"
    assert fork == f"{start}<assistant>{second}<end><user>x<end>"
    assert plain == "<bos><user>a<end><assistant>b<end><user>c<end><assistant>"
    assert sealed == "<bos><user>a<end><assistant>x<end><user>b<end>"
    tokens = [BOS, 260, *b"be brief", END, 258, *b"hi", END, 259]
    assert first == text(continuation(tokens, 4))


def test_a_turn_of_the_past_ends_once(rig: Rig) -> None:
    """It is rendered with its end; only a turn that was generated still lacks one."""
    body = """
parts = Context(model).user("a")
await parts.flush()
parts.assistant("b")
await parts.flush()
parts.user("c")
fork = parts.fork()
return [model.tokenizer.decode(context.tokens) for context in (parts, fork)]
"""
    assert run(rig, body) == ["<bos><user>a<end><assistant>b<end><user>c<end>"] * 2


def test_a_template_that_changes_the_past_cuts_the_context_back(rig: Rig) -> None:
    """What follows is as if the whole had been filled in at once; the context says what it cost."""
    body = """
ctx = Context(model, chat={"past": "|"})
ctx.user("a").cue().append(list(b"hm|b")).seal()
await ctx.flush()
before = ctx.recomputed
ctx.message("tool", "21", name="clock").cue()
whole = Context(model).append(ctx.tokens)
texts = [await c.generate(max_tokens=3).collect_text() for c in (ctx, whole)]
return [model.tokenizer.decode(whole.tokens), texts, before, ctx.recomputed]
"""
    text, (first, second), before, recomputed = run(rig, body)
    past = "<bos><user>a<end><assistant>b<end><tool>21clock<end><assistant>"
    assert text == past + second
    assert first == second
    assert (before, recomputed) == (0, len(b"hm|b") + 1)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["fill", "flush", "generate", "fork", "truncate", "release", "swap"]),
        st.integers(0, 30),
    ),
    min_size=3,
    max_size=25,
)


@given(OPERATIONS)
@example(
    [("generate", 1), ("fork", 0), ("truncate", 1), ("generate", 1)]
)  # a fork's own tokens cut
@example(  # a page that only the fork gave to the prefix cache, and the first one then cuts
    [("fill", 1), ("generate", 7), ("fork", 0), ("release", 0), ("truncate", 2)]
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_operations(rig: Rig, operations: list[tuple[str, int]]) -> None:
    body = """
contexts = [Context(model, add_bos=False).append([97])]
out = []
for name, number in json.loads(args[0]):
    ctx = contexts[-1]
    match name:
        case "fill": ctx.append([98 + number % 20] * number)
        case "flush": await ctx.flush()
        case "generate": out.append(await ctx.generate(max_tokens=number % 12).collect_tokens())
        case "fork": contexts.append(ctx.fork())
        case "truncate": ctx.truncate(max(1, len(ctx) - number))
        case "release" if len(contexts) > 1: contexts.pop().release()
        case "swap": contexts.reverse()
everything = [c.tokens for c in contexts]
for c in contexts: c.release()
left = json.loads(raw.pool_stats(raw.create_queue(model.name)))
return [out, everything, left["kv_pages_mine"], left["embeds_mine"], len(model.shared_pages)]
"""
    contexts = [[97]]
    expected = []
    for name, number in operations:
        ctx = contexts[-1]
        match name:
            case "fill":
                ctx += [98 + number % 20] * number
            case "generate":
                expected.append(continuation(ctx, number % 12))
                ctx += expected[-1]
            case "fork":
                contexts.append(ctx[:])
            case "truncate":
                del ctx[max(1, len(ctx) - number) :]
            case "release" if len(contexts) > 1:
                contexts.pop()
            case "swap":
                contexts.reverse()
    assert run(rig, body, json.dumps(operations)) == [expected, contexts, 0, 0, 0]
