"""asyncio in an inferlet: many tasks over one `wait`."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

from typing import Any

import pytest
from support.sdk_rig import Rig, continuation

HEAD = """
import asyncio, contextlib, json, time
from inferlet import Context, Model, PieError, raw, ready, runtime, session
"""


def run(rig: Rig, body: str, **options: Any) -> Any:
    return rig.answer(HEAD, body, **options)


def test_gather_sleeps_at_the_same_time(rig: Rig) -> None:
    body = """
asleep, most = 0, 0
async def one(i):
    nonlocal asleep, most
    asleep += 1
    most = max(most, asleep)
    await asyncio.sleep(0.05)
    asleep -= 1
    return i
return [await asyncio.gather(*(one(i) for i in range(50))), most]
"""
    assert run(rig, body) == [list(range(50)), 50]


def test_tasks_groups_timeouts_and_cancellation(rig: Rig) -> None:
    body = """
log = []
async def work(n):
    try:
        await asyncio.sleep(n)
        log.append(n)
    except asyncio.CancelledError:
        log.append("cancelled")
        raise
try:
    async with asyncio.timeout(0.02):
        await work(5)
except TimeoutError:
    log.append("timeout")
try:
    async with asyncio.TaskGroup() as group:
        group.create_task(work(5))
        await asyncio.sleep(0)
        raise ValueError("stop")
except* ValueError:
    log.append("group")
task = asyncio.create_task(work(5))
await asyncio.sleep(0)
task.cancel()
with contextlib.suppress(asyncio.CancelledError):
    await task
try:
    await asyncio.wait_for(session.receive(), 0.01)
except TimeoutError:
    log.append("no message")
return log
"""
    assert run(rig, body) == [
        "cancelled",
        "timeout",
        "cancelled",
        "group",
        "cancelled",
        "no message",
    ]


def test_queues_events_locks_conditions(rig: Rig) -> None:
    body = """
queue, event, lock, out = asyncio.Queue(2), asyncio.Event(), asyncio.Lock(), []
async def producer():
    for i in range(5):
        await queue.put(i)
    event.set()
async def consumer():
    for _ in range(5):
        async with lock:
            out.append(await queue.get())
            await asyncio.sleep(0.001)
await asyncio.gather(producer(), consumer(), event.wait())
done, pending = await asyncio.wait([asyncio.create_task(asyncio.sleep(d, d)) for d in (0, 9)], return_when="FIRST_COMPLETED")
for t in pending: t.cancel()
async def numbers():
    for i in range(3):
        await asyncio.sleep(0); yield i
return [out, len(done), [i async for i in numbers()], [await f for f in asyncio.as_completed([asyncio.sleep(0, 7)])]]
"""
    assert run(rig, body) == [[0, 1, 2, 3, 4], 1, [0, 1, 2], [7]]


def test_a_busy_task_does_not_starve_the_others(rig: Rig) -> None:
    body = """
done = asyncio.create_task(session.receive())
spins = 0
while not done.done():
    await asyncio.sleep(0)
    spins += 1
timer = asyncio.create_task(asyncio.sleep(0.01))
while not timer.done():
    await asyncio.sleep(0)
return [done.result(), spins > 0]
"""
    assert run(rig, body, send=["hello"]) == ["hello", True]


def test_a_task_that_cancels_itself_ends(rig: Rig) -> None:
    body = """
async def loop():
    asyncio.current_task().cancel()
    while True:
        await runtime.sleep(0)
task = asyncio.create_task(loop())
with contextlib.suppress(asyncio.CancelledError):
    await task
return task.cancelled()
"""
    assert run(rig, body) is True


def test_a_deadlock_is_an_error(rig: Rig) -> None:
    source = f"{HEAD}\nasync def main():\n    await asyncio.Event().wait()\n"
    line = source.count("\n")
    assert rig.run(source).text.endswith(f"that nothing can bring (program.py:{line})")


def test_what_main_leaves_behind_is_cancelled(rig: Rig) -> None:
    body = """
async def background():
    try: await asyncio.sleep(100)
    finally: print("cleaned up")
asyncio.create_task(background())
await asyncio.sleep(0)
return 1
"""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    outcome = rig.run(f"{HEAD}\nasync def main():\n{lines}\n")
    assert (outcome.text, outcome.log) == ("1", [("info", "cleaned up")])


@pytest.mark.parametrize("seconds", [0, 0.01])
def test_an_exception_that_nobody_awaits_is_logged(rig: Rig, seconds: float) -> None:
    body = f"""
async def fails(): raise ValueError("lost")
task = asyncio.create_task(fails())
await asyncio.sleep({seconds})
del task
return 1
"""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    log = rig.run(f"{HEAD}\nasync def main():\n{lines}\n").log
    assert any("never retrieved" in line for _, line in log)
    assert any("ValueError: lost" in line for _, line in log)


def test_asyncio_run_in_a_plain_main(rig: Rig) -> None:
    source = f"{HEAD}\nasync def work():\n    await asyncio.sleep(0.001)\n    return 5\n"
    assert rig.run(
        f"{source}\ndef main(): return [asyncio.run(work()), asyncio.run(work())]"
    ).text == ("[5, 5]")
    nested = rig.run(f"{source}\nasync def main(): return asyncio.run(work())")
    assert "cannot be called from a running event loop" in nested.text


def test_a_cancelled_generation_leaves_a_sound_context(rig: Rig) -> None:
    body = """
ctx = Context(Model.load()).fill("abcdefgh")
other = ctx.fork()
task = asyncio.create_task(ctx.generate(max_tokens=500).collect_tokens())
noise = asyncio.create_task(other.generate(max_tokens=500).collect_tokens())
await asyncio.sleep(0.02)
task.cancel(); noise.cancel()
await asyncio.gather(task, noise, return_exceptions=True)
child = ctx.fork()
before = ctx.tokens
return [before, await ctx.generate(max_tokens=5).collect_tokens(), await child.generate(max_tokens=5).collect_tokens()]
"""
    before, own, child = run(rig, body)
    assert own == child == continuation(before, 5)
