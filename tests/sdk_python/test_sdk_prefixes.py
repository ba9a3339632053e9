"""The prefix cache under contexts: what they generate is the same, and common beginnings run
once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sdk_rig import BOS, PAGE_SIZE, Outcome, Rig, continuation

from pie_py.wire.plan import Forward, Plan, PlanResult

PROGRAM = """
import asyncio, json
from inferlet import *
model = Model.load()

async def main(args):
    seen, contexts = [], []
    for what, which, value in json.loads(args[0]):
        ctx = contexts[which % len(contexts)] if contexts else None
        if what == "new":
            contexts.append(Context(model, prefix_cache=which < 5).fill(value))
        elif ctx is None:
            continue
        elif what == "fill":
            ctx.fill(value)
        elif what == "flush":
            await ctx.flush()
        elif what == "generate":
            if not len(ctx):  # all of it was cut off
                continue
            before = ctx.tokens
            seen.append([before, await ctx.generate(max_tokens=value).collect_tokens()])
        elif what == "fork":
            contexts.append(ctx.fork())
        elif what == "truncate":
            ctx.truncate(len(ctx) * value // 10)
        elif what == "release":
            contexts.remove(ctx)
            ctx.release()
        elif what == "die":
            asyncio.create_task(ctx.flush())
            await asyncio.sleep(0)
            raise RuntimeError("as it was told")
    return seen
"""


@contextmanager
def counted(rig: Rig) -> Iterator[list[int]]:
    """The inputs of all forwards that the worker runs meanwhile, by forward."""
    inputs: list[int] = []
    run = rig.worker.run

    def count(plan: Plan) -> PlanResult:
        for batch in plan.batches:
            if isinstance(batch, Forward):
                inputs.extend((batch.input_starts[1:] - batch.input_starts[:-1]).tolist())
        return run(plan)

    rig.worker.run = count  # type: ignore[method-assign]
    try:
        yield inputs
    finally:
        rig.worker.run = run  # type: ignore[method-assign]


def run(rig: Rig, *scripts: list[tuple[str, int, object]]) -> list[Outcome]:
    return rig.run_all([(PROGRAM, [json.dumps(script)]) for script in scripts])


def check(outcome: Outcome) -> int:
    """Whether what was generated follows the tokens before; how many generations there were."""
    assert outcome.ok, outcome.text
    seen = json.loads(outcome.text)
    for before, found in seen:
        assert found == continuation(before, len(found))
    return len(seen)


def test_requests_that_come_together_compute_their_common_beginning_once(rig: Rig) -> None:
    prompt = "x" * 103  # thirteen pages with the token of beginning
    scripts = [[("new", 0, prompt + f" {i:2}"), ("generate", 0, 4)] for i in range(32)]
    with counted(rig) as inputs:
        assert sum(map(check, run(rig, *scripts))) == 32
    # Between the two parts of it a program that is interrupted lets another one compute the same.
    assert sum(inputs) < 12 * 107 + 32 * 7
    uncached = [[("new", 5, prompt), ("generate", 0, 1)] for _ in range(2)]
    with counted(rig) as inputs:
        run(rig, *uncached)
    assert sum(inputs) >= 2 * 64


@pytest.mark.parametrize("prompt", ["hello", "hello yo"])
def test_a_conversation_goes_on_where_the_last_instance_left_it(rig: Rig, prompt: str) -> None:
    answer = continuation([BOS, *prompt.encode()], 40)
    assert 257 not in answer
    longer = prompt + bytes(answer).decode() + " and more"
    body = """
async def main(args):
    with Context(model).fill(args[1]) as ctx:
        await ctx.generate(max_tokens=40).collect_tokens()
    other = Context(model).fill(args[0])
    await other.flush()
    return [len(other), other.sequence.offered]
"""
    with counted(rig) as inputs:
        head = PROGRAM[: PROGRAM.index("async def")]
        (outcome,) = rig.run_all([(head + body, [longer, prompt])])
    assert outcome.ok, outcome.text
    length, cached = json.loads(outcome.text)
    pages = (len(prompt) + 40) // PAGE_SIZE  # the last token was not run
    assert cached >= pages
    assert inputs[-1] == length - pages * PAGE_SIZE


SMALL = 24  # pages


@pytest.fixture(scope="module")
def small_rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("small"), kv_pages=SMALL, max_batch_tokens=40)


TEXTS = st.tuples(st.integers(0, 45), st.sampled_from(["", "a", "bb", "and so on"])).map(
    lambda cut: ("the quick brown fox jumps over the lazy dog"[: cut[0]] + cut[1]) or "t"
)
STEPS = st.one_of(
    st.tuples(st.just("new"), st.integers(0, 5), TEXTS),
    st.tuples(st.sampled_from(["flush", "fork", "release"]), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("fill"), st.integers(0, 3), TEXTS),
    st.tuples(st.just("generate"), st.integers(0, 3), st.integers(1, 12)),
    st.tuples(st.just("truncate"), st.integers(0, 3), st.integers(1, 9)),
)
ENDS = st.sampled_from([[], [], [("die", 0, 0)]])
SCRIPTS = st.lists(
    st.tuples(TEXTS, st.lists(STEPS, max_size=6), ENDS).map(
        lambda parts: [("new", 0, parts[0]), ("generate", 0, 3), *parts[1], *parts[2]]
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=SCRIPTS)
def test_texts_are_the_same_whatever_is_found(
    small_rig: Rig, scripts: list[list[tuple[str, int, object]]]
) -> None:
    for script, outcome in zip(scripts, run(small_rig, *scripts), strict=True):
        if outcome.ok:
            assert script[-1][0] != "die" or any(what == "release" for what, _, _ in script)
            check(outcome)
        else:
            reasons = ("as it was told", "out-of-resources")
            assert any(reason in outcome.text for reason in reasons), outcome.text
