"""A durable instance whose journal is cut anywhere does what the one that was not killed did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from support.durable import MODELS, Run, cut_everywhere, follow, follow_all
from support.javascript import require_javascript
from support.rust_components import rust_component
from support.servers import Server

from pie_control.journal.file import DamagedJournal, framed, read_ends, read_entries

MESSAGES = ["hello", " two", "three"]

TALK = """\
import asyncio
from inferlet import Context, Model, PieError, Sampler, raw, runtime, session, store
from inferlet._loop import ready

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

async def add_one():
    await store.update("count", lambda old: str(int(old or b"0") + 1))

async def taken_as_another_kind_first():
    future = raw.receive()
    try:
        return raw.take_blob(future)
    except PieError as error:
        await ready(future)
        return error.code + raw.take_text(future)

async def text(context, count, **more):
    return await context.generate(Sampler(top_p=0.95, **more), max_tokens=count).collect_text()

async def main() -> str:
    context = Context(Model.load()).fill("Once upon a time")
    session.send("begin\\n")
    session.send(await text(context, 10))
    key = runtime.random_bytes(4).hex()
    for _ in range(3):
        await add_one()
    session.send(await taken_as_another_kind_first())
    await context.generate(Sampler(top_p=0.9), max_tokens=16).send_text()
    context.fill(await session.receive())
    a, b = context.fork(), context.fork()
    texts = text(a, 8), text(b, 6, seed=7)
    session.send(f"{await asyncio.gather(*texts, session.receive(), runtime.sleep(0.01))}")
    async for piece in a.generate(Sampler(repetition_penalty=1.3), max_tokens=8).stream_text():
        session.send(piece)
    session.send(f"{await b.generate(Sampler(), max_tokens=30).collect_json(SCHEMA)}")
    session.send_blob(b"\\x00\\xff") if key == "" else None
    began = runtime.monotonic()
    assert runtime.monotonic() >= began
    count = (await store.get("count")).decode()
    return f"{count} {key == key.lower()}"
"""

STEPS = """\
from inferlet import Context, Model, Sampler, session
from inferlet.samplers import mirostat

async def main() -> str:
    context = Context(Model.load()).fill("Once upon a time there was")
    line = await session.receive()
    async for step in context.generate(Sampler(top_p=0.9, logprobs=3), max_tokens=8):
        output = await step.execute()
        session.send(f"{output.tokens} {output.distribution().tokens} ")
    generation = context.generate(max_tokens=5)
    async for step in generation:
        likely = await step.distribution(4)
        generation.accept([likely.tokens[1]])
    other = context.fork()
    sampler = mirostat(mu=10.0, tau=5.0, rate=0.1)
    session.send(await other.generate(sampler, max_tokens=6).collect_text())
    return line + await session.receive() + await session.receive()
"""


WORDS = """\
import { Context, Model, Sampler, runtime, session, store } from "inferlet";

export async function main(args: string[]): Promise<string> {
  const context = new Context(Model.load()).fill(args[0]);
  const likely = await context.distribution(3);
  const line = await session.receive();
  session.send(`${likely.tokens} ${line} ${runtime.randomBytes(2).length}`);
  const forks = [context.fork(), context.fork(), context.fork()];
  const sampled = forks.map((fork) => fork.generate(Sampler.topP(1, 0.9), { maxTokens: 8 }));
  const texts = await Promise.all(sampled.map((generator) => generator.collectText()));
  session.send(texts.join("|"));
  await context.generate(Sampler.topP(1, 0.9), { maxTokens: 16 }).sendText();
  return await session.receive();
}
"""


def written(file: str, source: str) -> Callable[[Path], Path]:
    """What writes a source file into a folder."""

    def write(folder: Path) -> Path:
        if file.endswith("ts"):
            require_javascript()
        (folder / file).write_text(source)
        return folder / file

    return write


def rust(folder: Path) -> Path:
    return rust_component("text_completion")


Program = tuple[Callable[[Path], Path], list[str], list[str]]  # its file, arguments, messages
TALKS: Program = (written("it.py", TALK), [], MESSAGES)
STEPPED: Program = (written("it.py", STEPS), [], MESSAGES)
COMPLETES: Program = (rust, ["--prompt", "Once", "--temperature", "1"], [])
SPEAKS: Program = (written("it.ts", WORDS), ["Once"], MESSAGES[:2])


# An odd number, so that commits under way have been made at some cuts and at others not.
EVERY = [5, pytest.param(1, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize(
    "programs", [(TALKS, STEPPED, COMPLETES), (SPEAKS,)], ids=["python and rust", "javascript"]
)
def test_a_cut_journal_gives_the_same(
    programs: tuple[Program, ...], every: int, short_folder: Path
) -> None:
    launched: list[tuple[str, list[str], Run]] = []
    with Server(short_folder, models=MODELS) as server, server.client() as client:
        for program, args, messages in programs:
            uploaded = client.upload(program(short_folder))
            instance = client.launch(uploaded, args, durable=True, detached=True)
            whole = anyio.run(follow, server.endpoint, instance.id, messages)
            assert "rror" not in whole.result, whole.result
            launched.append((instance.id, messages, whole))
    data = short_folder / "data"
    cuts = {one: cut_everywhere(data, one, every=every) for one, *_ in launched}
    with Server(short_folder, models=MODELS) as server:
        for one, messages, whole in launched:
            assert len(cuts[one]) > 20 // every
            found = follow_all(server.endpoint, cuts[one], messages)
            assert {name: run for name, run in found.items() if run != whole} == {}


ENTRIES = [{"program": "a"}, ["call", "session.send", None, True, "x" * 50], ["sent", b"id", "y"]]
WHOLE = b"".join(map(framed, ENTRIES))
STARTS = [len(b"".join(map(framed, ENTRIES[:count]))) for count in range(len(ENTRIES) + 1)]


def test_a_cut_file_has_the_entries_before() -> None:
    for size in range(len(WHOLE) + 1):
        count = sum(start <= size for start in STARTS) - 1
        assert read_entries(WHOLE[:size]) == (ENTRIES[:count], STARTS[count])
        assert read_entries(WHOLE[:size] + bytes(99))[0] in (ENTRIES[:count], ENTRIES)


def test_a_cut_file_without_a_sleeper_has_no_ends(tmp_path: Path) -> None:
    for size in range(len(WHOLE) + 1):
        (tmp_path / "journal").write_bytes(WHOLE[:size])
        assert read_ends(tmp_path / "journal") is None


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_damaged_entry_is_no_cut(bit: int) -> None:
    for place in range(STARTS[-2]):
        data = bytearray(WHOLE)
        data[place] ^= 1 << bit
        with pytest.raises(DamagedJournal, match="is damaged"):
            read_entries(bytes(data))
