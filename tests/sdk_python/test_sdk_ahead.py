"""Steps queued before their tokens are known: output and contexts are as without."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.fake_worker import Value
from support.sdk_rig import BOS, Rig, TextSampler, TextWorker, continuation

# A program is a list of operations on a few contexts. It tells after each of them all that can be known
# of the context, and at last what each context goes on with.
PROGRAM = '''
import asyncio, gc, json
from inferlet import *
from inferlet import raw
model = Model.load()

def own(tokens, probabilities):
    """A rule of the program's own."""
    return tokens[0]

def facts(ctx):
    spans = [n for page in ctx.sequence.pages.addresses for n in (page, 1)]
    used = raw.kvpage_used(ctx.queue, spans) if spans else []
    known = ctx.sequence.facts()
    # Which of the tokens wait to be run may differ: after a run, the newest hidden state is not at hand.
    return [ctx.tokens, len(ctx), sum(used) == ctx.seq_len, known["ahead"], known["confirmed"] == ctx.seq_len]

def make(options, ahead):
    name = options.get("sampler")
    if name == "own":
        return dict(choose=own, max_tokens=options["most"], stop=options["stop"], run_ahead=ahead)
    if name == "device":
        sampler = Sampler(temperature=0.8, seed=5)
    elif name == "penalties":
        sampler = Sampler(temperature=0.8, seed=5, presence_penalty=0.5)
    elif name == "chance":
        sampler = Sampler.top_p(0.9, 0.9, seed=-7)
    else:
        sampler = None
    return dict(sampler=sampler, max_tokens=options["most"], stop=options["stop"], run_ahead=ahead)

async def go(ctx, op, ahead):
    kind, options = op
    if kind == "fill":
        ctx.fill(options)
        return None
    if kind == "truncate":
        ctx.truncate(min(options, len(ctx)))
        return None
    if kind == "flush":
        await ctx.flush()
        return None
    generator = ctx.generate(**make(options, ahead))
    how, stop_after = options["how"], options["after"]
    out = []
    if how == "tokens":
        out = await generator.collect_tokens()
    elif how == "scored":
        out = await generator.collect_tokens(logprobs=options["sampler"] != "own")
    elif how == "text":
        out = await generator.collect_text()
    elif how == "send":
        out = await generator.send_text()
    elif how == "steps":
        async for step in generator:
            out += (await step.execute()).tokens
    elif how in ("break", "look", "fork", "accept", "save"):
        async for token in generator.stream_tokens():
            out.append(token)
            if len(out) != stop_after:
                continue
            if how == "break":
                break
            if how == "look":
                out.append((await ctx.distribution(2)).tokens)
            elif how == "fork":
                child = ctx.fork().fill("!")
                out.append(await child.generate(max_tokens=3, run_ahead=ahead).collect_tokens())
            elif how == "accept":
                out.append(generator.accept([120, 121]))
        await asyncio.sleep(0)  # the loop closes what was left, and with it the step ahead is undone
    elif how == "cancel":
        async def read():
            async for token in generator.stream_tokens():
                out.append(token)
        task = asyncio.create_task(read())
        while not task.done() and len(out) < stop_after:
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        out = []  # how many came before is chance
        ctx.truncate(min(len(ctx), 4))
    return [out, generator.tokens_generated if how != "cancel" else 0, generator.is_done if how != "cancel" else 0]

async def tell(contexts, ops, ahead):
    told = []
    for number, op in ops:
        ctx = contexts[number]
        if op[0] == "fork":
            contexts[number] = ctx.fork()
            told.append(facts(ctx))
            continue
        told.append(await go(ctx, op, ahead))
        if op[0] != "generate" or op[1]["how"] not in ("cancel", "break"):
            told.append(facts(ctx))
        else:
            told.append(facts(ctx)[:2])
    return told

async def main(args):
    ops, lanes, ahead = json.loads(args[0]), int(args[1]), args[2] == "ahead"
    contexts = [Context(model, prefix_cache=False).fill("abcdefghijkl"[:3 + 4 * i]) for i in range(lanes)]
    mine = [[op for op in ops if op[0] == i] for i in range(lanes)]
    told = await asyncio.gather(*(tell(contexts, own, ahead) for own in mine))
    last = []
    for ctx in contexts:
        last.append([ctx.tokens, await ctx.fill("?").generate(max_tokens=4, run_ahead=False).collect_tokens()])
        ctx.release()
    left = json.loads(raw.pool_stats(raw.create_queue(model.name)))
    return [told, last, left["kv_pages_mine"], left["embeds_mine"]]
'''


def repeatable(options: dict[str, Any]) -> dict[str, Any]:
    """A step that was undone in mid-generation has drawn: later draws are others."""
    touched = options["how"] in ("look", "fork")
    return {**options, "sampler": None} if touched else options


GENERATIONS = st.fixed_dictionaries(
    {
        "most": st.integers(0, 20),
        "stop": st.lists(
            st.integers(97, 122) | st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=2),
            max_size=3,
        ),
        "sampler": st.sampled_from([None, None, "own", "device", "penalties", "chance"]),
        "how": st.sampled_from(
            [
                *("tokens", "scored", "scored", "text", "text", "send", "send", "break", "look"),
                *("fork", "steps", "cancel"),
            ]
        ),
        "after": st.integers(1, 6),
    }
).map(repeatable)
OPERATIONS = (
    st.tuples(st.just("generate"), GENERATIONS)
    | st.tuples(st.just("generate"), GENERATIONS)
    | st.tuples(st.just("fill"), st.text("xyz", max_size=9))
    | st.tuples(st.just("truncate"), st.integers(1, 30))
    | st.tuples(st.just("flush"), st.none())
    | st.tuples(st.just("fork"), st.none())
)


def run(rig: Rig, ops: list[Any], lanes: int, *modes: str) -> list[Any]:
    outcomes = rig.run_all(
        [(PROGRAM, [json.dumps(ops), str(lanes), mode]) for mode in modes], name="ahead"
    )
    for outcome in outcomes:
        assert outcome.ok, outcome.text
    return [json.loads(outcome.text) for outcome in outcomes]


def left(how: str, most: int) -> tuple[str, dict[str, Any]]:
    return "generate", {"most": most, "stop": [], "sampler": None, "how": how, "after": 1}


@example(ops=[(0, left("break", 2)), (0, left("tokens", 0))], lanes=1)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(st.tuples(st.integers(0, 2), OPERATIONS), max_size=12), lanes=st.integers(1, 3))
def test_random_programs_on_and_off(rig: Rig, ops: list[Any], lanes: int) -> None:
    on, off = run(rig, [op for op in ops if op[0] < lanes], lanes, "ahead", "behind")
    assert on == off
    assert on[2:] == [0, 0]
    for tokens, after in on[1]:
        assert after == continuation([*tokens, ord("?")], 4)


HEAD = PROGRAM.split("def own")[0]


def measured(rig: Rig, monkeypatch: pytest.MonkeyPatch, body: str, **facts: Any) -> tuple[Any, int]:
    """What a program returns at a model with these facts, and how many forwards it took."""
    monkeypatch.setattr(rig, "facts", replace(rig.facts, **facts))
    monkeypatch.setattr(rig, "worker", TextWorker(rig.facts))
    return rig.answer(HEAD, body), rig.worker.forwards


@pytest.mark.parametrize("ahead", [True, False])
def test_at_most_one_step_is_in_vain(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    tokens = [BOS, *b"ab"]
    expected = continuation(tokens, 12)
    first = next(i for i in range(5, 12) if expected[i] not in expected[:i])
    body = """
out = await Context(model).fill("ab").generate(max_tokens=12, stop=[%r], run_ahead=%r).collect_tokens()
return out
"""
    out, forwards = measured(rig, monkeypatch, body % (expected[first], ahead))
    assert out == expected[:first]
    assert forwards == 1 + first + ahead
    out, forwards = measured(rig, monkeypatch, body % ("none", ahead))
    assert out == expected
    assert forwards == 12


def test_who_reads_by_steps_is_at_most_two_behind_the_server(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
generator = Context(model).fill("ab").generate(Sampler(temperature=0), max_tokens=12, stop=[%d])
out = []
async for step in generator:
    out += (await step.execute()).tokens
return out
"""
    expected = continuation([BOS, *b"ab"], 12)
    out, forwards = measured(rig, monkeypatch, body % expected[6])
    assert out == expected[: expected.index(expected[6])]
    assert 1 <= forwards - len(out) <= 3


def test_a_model_without_the_trait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server chooses nothing there; a function of one's own does."""
    body = """
ctx = Context(model).fill("ab")
out = [await ctx.generate(choose=lambda tokens, chances: tokens[0], max_tokens=9).collect_tokens()]
try:
    await ctx.generate(max_tokens=9).collect_tokens()
except PieError as error:
    out.append(str(error))
return out
"""
    traits = [trait for trait in rig.facts.traits if trait != "sample"]
    out, _ = measured(rig, monkeypatch, body, traits=traits)
    assert out[0] == continuation([BOS, *b"ab"], 9)
    assert out[1].startswith("unsupported: ")


def test_nothing_is_taken_from_others_for_a_step_ahead(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is not there, an embed that is not there, samplers that are all in use."""
    body = """
ctx = Context(model, add_bos=False).append([97] * 7)
others = raw.create_queue(model.name)
def fill(take):
    try:
        while True:
            take()
    except PieError:
        pass
held = [raw.alloc_kvpage(others, 7), 7]
out = [await ctx.generate(max_tokens=2).collect_tokens(), ctx.sequence.facts()["pages"]]
try:
    await ctx.generate(max_tokens=4).collect_tokens()
except PieError as error:
    out.append(error.code)
raw.dealloc_kvpage(others, held)
await asyncio.sleep(0.001)  # what is queued goes first
ctx = Context(model, add_bos=False).append([97] * 3)
await ctx.flush()
fill(lambda: raw.alloc_emb(others, 1))
out.append(await ctx.generate(max_tokens=4).collect_tokens())
gc.collect()  # what the error has held
fill(lambda: raw.create_sampler(others, ""))
try:
    await ctx.generate(max_tokens=3).collect_tokens()
except PieError as error:
    out.append(error.code)
return out
"""
    out, _ = measured(rig, monkeypatch, body, kv_pages=8, samplers=512)
    assert out[0] == continuation([97] * 7, 2)
    assert len(out[1]) == 1
    assert out[2] == "out-of-resources"
    assert out[3] == continuation([97] * 3, 4)
    assert out[4] == "out-of-resources"


class ProgramsChooseNothing(TextSampler):
    """Programs that workers have not compiled rule out every token."""

    def pick(self, value: Value, step: int, mask: tuple[int, ...], vocab: int) -> int | None:
        is_compiled = self.facts[1][3]  # type: ignore[index]  # the program
        return super().pick(value, step, mask, vocab) if is_compiled else None


def test_a_choice_that_fails_leaves_the_context_usable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextWorker, "sampler", ProgramsChooseNothing)
    body = """
out = []
for ahead in (True, False):
    ctx = Context(model).fill("ab")
    none = Sampler(temperature=0, logit_bias=dict.fromkeys(range(97, 123)))
    try:
        await ctx.generate(none, max_tokens=5, run_ahead=ahead).collect_tokens()
    except PieError as error:
        out.append(error.code)
    out.append([ctx.tokens, ctx.seq_len, len(ctx.sequence.pages.addresses)])
    out.append(await ctx.generate(max_tokens=5, run_ahead=ahead).collect_tokens())
return out
"""
    out, _ = measured(rig, monkeypatch, body)
    tokens = [BOS, *b"ab"]
    assert out[:3] == out[3:] == ["invalid-argument", [tokens, 3, 1], continuation(tokens, 5)]


def test_tokens_of_the_program_count_and_undone_ones_do_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler with penalties starts anew after a step that was undone."""
    body = """
sampler = Sampler(temperature=0, seed=1, presence_penalty=1.0)
out, kept = [], []
for ahead in (True, False):
    ctx = Context(model).fill("ab")
    generator = ctx.generate(sampler, max_tokens=9, run_ahead=ahead)
    async for token in generator.stream_tokens():
        if generator.tokens_generated == 3:
            assert generator.accept([120, 121]) == [120, 121]
    out.append(ctx.tokens)
    kept.append(generator)
return out
"""
    out, _ = measured(rig, monkeypatch, body)
    for tokens in out:
        assert tokens[6:8] == [120, 121]
        assert len(tokens) == 12
        assert tokens in [[t for t, _ in s.history] for s in rig.worker.samplers.values()]


def test_tokens_of_the_program_before_a_run_has_given_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is cancelled while the first token is on its way; then the program goes on its own way."""
    body = """
ctx = Context(model).fill("ab")
generator = ctx.generate(max_tokens=8)
task = asyncio.create_task(generator.collect_tokens())
while not ctx.sequence.facts()["ahead"]:
    await asyncio.sleep(0)
task.cancel()
await asyncio.wait([task])
assert generator.accept([120]) == [120]
return await generator.collect_tokens()
"""
    out, _ = measured(rig, monkeypatch, body)
    assert out == continuation([BOS, *b"abx"], 7)


def test_stop_strings_that_the_server_does_not_look_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More text than it takes: the program looks for them, with the same outcome."""
    expected = continuation([BOS, *b"ab"], 12)
    stop = bytes(expected[4:6]).decode()
    body = """
out = []
for more in ([], ["x" * 2000]):
    ctx = Context(model, prefix_cache=False).fill("ab")
    generator = ctx.generate(max_tokens=12, stop=[%r, *more])
    out.append([await (generator.send_text() if more else generator.collect_text()), ctx.tokens])
return out
"""
    out, _ = measured(rig, monkeypatch, body % stop)
    assert out[0] == out[1]
    assert out[0][0] == bytes(expected[:4]).decode()
