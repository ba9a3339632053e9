"""Messaging, store and children: what tests launch, as `tests/control_guests` in Rust; same
arguments.
"""

import asyncio
from typing import Any

from inferlet import PieError, messaging, raw, runtime, session, store

LARGE = "x" * (2 << 20)


async def main(args: list[str]) -> str:
    mode, *rest = args
    return str(await MODES[mode](*rest))


# Messaging


async def worker(jobs: str, results: str) -> int:
    count = 0
    while (job := await messaging.pull(jobs)) != "stop":
        await messaging.push(results, job)
        count += 1
    return count


async def produce(topic: str, count: str) -> str:
    for number in range(int(count)):
        await messaging.push(topic, str(number))
    return ""


async def collect(topic: str, count: str) -> str:
    return " ".join([await messaging.pull(topic) for _ in range(int(count))])


async def listen(topic: str) -> str:
    """Reads until `end` comes, beginning when the client says so."""
    heard = []
    with messaging.subscribe(topic) as subscription:
        session.send("listening")
        await session.receive()
        async for text in subscription:
            if text == "end":
                break
            heard.append(text[:9])
    return " ".join(heard)


async def flood(topic: str) -> str:
    """Broadcasts until somebody's box is full, says why, and waits for room."""
    sent = 0
    while True:
        try:
            raw.broadcast(topic, LARGE)
        except PieError as error:
            session.send(str(error))
            break
        sent += 1
    await messaging.broadcast(topic, "end")
    return str(sent)


# Store


async def count(key: str, times: str) -> str:
    value = b""
    for _ in range(int(times)):
        value = await store.update(key, lambda old: str(int(old or b"0") + 1).encode()) or b""
    return value.decode()


async def put(key: str, value: str) -> str:
    try:
        await store.set(key, value.encode())
    except PieError as error:
        return str(error)
    return ""


async def get(key: str) -> str:
    value = await store.get(key)
    return "nothing" if value is None else value.decode()


async def keys(prefix: str) -> str:
    return " ".join([key async for key in store.keys(prefix)])


async def fill(prefix: str, number: str) -> str:
    await asyncio.gather(*(store.set(f"{prefix}{n:05}", b"") for n in range(int(number))))
    return ""


async def bulk(number: str) -> str:
    """More at once than may be under way."""
    values = {f"bulk/{n}": bytes([n]) * (1 << 20) for n in range(int(number))}
    await asyncio.gather(*(store.set(key, value) for key, value in values.items()))
    assert await asyncio.gather(*map(store.get, values)) == list(values.values())
    await asyncio.gather(*map(store.delete, values))
    return "as it was"


async def transact() -> str:
    await store.delete("t/c")
    assert await store.commit({"t/a": b"1", "t/b": b"\0\xff"}, {"t/c": None})
    assert not await store.commit({"t/a": b"9"}, {"t/b": b"other"})
    assert not await store.commit({"t/a": b"9"}, {"t/b": None})
    assert not await store.commit({"t/a": b"9"}, {"t/c": b""})
    assert await store.get("t/a") == b"1"
    assert await store.commit({"t/a": "ä"}, {"t/a": "1"})
    assert (await store.get_text("t/a"), await store.get_text("t/c")) == ("ä", None)
    await store.set("t/a", "1")
    assert await store.commit({"t/a": None, "t/c": b"2"}, {"t/a": b"1", "t/b": b"\0\xff"})
    found = await store.keys("t/")
    assert found == [key async for key in store.keys("t/")]
    number: Any = 1
    refused = await asyncio.gather(store.set("t/a", number), return_exceptions=True)
    assert "text or bytes, not int" in str(refused)
    assert await store.update("t/c", lambda old: None) is None
    return f"{' '.join(found)} {await store.get('t/c')!r}".replace("None", "nothing")


# Children


async def echo(*texts: str) -> str:
    return " ".join(texts)


async def fail(text: str) -> str:
    raise SystemExit(text)


async def sleep() -> str:
    await runtime.sleep(600)
    return ""


async def run(program: str, *args: str) -> str:
    try:
        return await runtime.launch(program, *args)
    except PieError as error:
        return f"{error.code}|{error.message}"


async def hello(topic: str) -> str:
    """Tells its parent that it is there, and stays."""
    await messaging.push(topic, runtime.instance_id())
    return await sleep()


async def family(program: str, size: str) -> str:
    """Has children, and stays."""
    topic = f"{runtime.instance_id()}/hello"
    tasks = [asyncio.create_task(runtime.launch(program, "hello", topic)) for _ in range(int(size))]
    for _ in tasks:
        await messaging.pull(topic)
    session.send("all there")
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return await run(program, "echo", "one has ended")


async def give_up(program: str) -> str:
    topic = f"{runtime.instance_id()}/hello"
    task = asyncio.create_task(runtime.launch(program, "hello", topic))
    child = await messaging.pull(topic)
    task.cancel()
    await asyncio.wait([task])
    return child


async def burst(program: str, size: str) -> str:
    """Launches without waiting for any; says how many were accepted, and why not more."""
    accepted = []
    for _ in range(int(size)):
        try:
            accepted.append(raw.launch(program, ["sleep"]))
        except PieError as error:
            return f"{len(accepted)} {error.code}"
    return str(len(accepted))


async def nest(program: str, depth: str) -> str:
    """How many generations below this one there can be."""
    try:
        return await runtime.launch(program, "nest", program, str(int(depth) + 1))
    except PieError as error:
        return f"{depth} {error.code}"


async def talk(program: str) -> str:
    me = runtime.instance_id()
    child = asyncio.create_task(runtime.launch(program, "answer", f"{me}/ask", f"{me}/answer"))
    answers = []
    for question in ("one", "two", "stop"):
        await messaging.push(f"{me}/ask", question)
        if question != "stop":
            answers.append(await messaging.pull(f"{me}/answer"))
    return " ".join([*answers, await child])


async def answer(questions: str, answers: str) -> str:
    while (question := await messaging.pull(questions)) != "stop":
        await messaging.push(answers, question.upper())
    return "bye"


async def chatter() -> str:
    """Says more to nobody than a mailbox holds."""
    for _ in range(20):
        session.send(LARGE)
    return "said it all"


MODES = {
    function.__name__.replace("_", "-"): function
    for function in (
        worker, produce, collect, listen, flood,
        count, put, get, keys, fill, bulk, transact,
        echo, fail, sleep, run, hello, family, give_up, burst, nest, talk, answer, chatter,
    )
}  # fmt: skip
