"""What strangers send is compiled, tokenized and rendered where it can end nobody else's work."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from PIL import ExifTags, Image
from support.checkpoints import small_tokenizer
from support.compiled_grammars import compile_grammar
from support.instances import failure
from support.scheduler_fixtures import MODEL

from pie_control.api.grammar.service import GrammarService
from pie_control.api.tokenize import MAX_TOKENS, TokenizeCalls
from pie_control.confined import pool as pool_module
from pie_control.confined.pool import ConfinedPool, JobStopped
from pie_control.errors import ApiError, ProgramRejected
from pie_control.fairness import Owner
from pie_control.models.tokenizer import TextCodec, encode
from pie_control.programs.source_check import check_file
from pie_py.config.processes import GroupTime
from pie_py.config.services import ConfinedConfig, GrammarConfig
from pie_py.wire.images import ImageSize, image_size

WORDS = replace(MODEL, vocab_size=400, stop_tokens=[1])
MALLORY, VICTIM = Owner("mallory", "m"), Owner("victim", "v")
LIMIT_SECONDS = 60.0  # until a test is given up


@pytest.fixture(scope="module")
def pool() -> Iterator[ConfinedPool]:
    made = ConfinedPool(ConfinedConfig(processes=2))
    yield made
    trio.run(_close, made)


async def _close(pool: ConfinedPool) -> None:
    pool.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    small_tokenizer().save_pretrained(made)
    return made


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        with trio.fail_after(LIMIT_SECONDS):
            return await test()

    return trio.run(limited)


def chained_rules(count: int) -> str:
    rules = [f'r{i}: "a" r{i + 1}' for i in range(count)]
    return "\n".join(["start: r0", *rules, f'r{count}: "b"'])


def chained_references(count: int) -> str:
    defs = {f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in
            range(count)}  # fmt: skip
    return json.dumps({"$defs": defs | {f"d{count}": {}}, "$ref": "#/$defs/d0"})


GRAMMARS = {
    "rules": ("lark", chained_rules(8000)),
    "terminals": ("lark", chained_rules(8000).replace("r", "T").replace("staTt", "start")),
    "ebnf": ("ebnf", chained_rules(6000).replace(":", " ::=").replace("start", "root")),
    "references": ("json-schema", chained_references(3500)),
}


@pytest.mark.parametrize("name", GRAMMARS)
async def test_no_grammar_ends_the_server(name: str, pool: ConfinedPool, folder: Path) -> None:
    kind, text = GRAMMARS[name]
    service = GrammarService(GrammarConfig(compile_seconds=0.5), pool)
    patient = GrammarService(GrammarConfig(compile_seconds=30), pool)
    codec = TextCodec(folder)

    service.check(kind, text)
    with pytest.raises(ApiError) as error:
        await compile_grammar(service, WORDS, codec, kind, text, "mallory")
    assert error.value.code in ("limit-exceeded", "invalid-argument")
    await compile_grammar(patient, WORDS, codec, "regex", "ab", "victim")


def nested_finally(levels: int) -> str:
    lines = ["def f():"]
    for level in range(levels):
        lines += [" " * (level + 1) + "try: x", " " * (level + 1) + "finally:"]
    return "\n".join([*lines, " " * (levels + 1) + "x", ""])


async def test_a_source_whose_code_doubles_with_each_level_is_refused(
    pool: ConfinedPool, tmp_path: Path
) -> None:
    bomb, good = tmp_path / "bomb", tmp_path / "good"
    bomb.write_text(nested_finally(19))
    good.write_text("async def main(args): return 'x'\n")

    stopped = trio.Event()

    async def attack() -> None:
        with pytest.raises((JobStopped, ProgramRejected), match=r"takes more|nested too deep"):
            await pool.call(MALLORY, "bomb", check_file, str(bomb), "bomb", seconds=1)
        stopped.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attack)
        await pool.call(VICTIM, "good", check_file, str(good), "good", seconds=5)
        assert not stopped.is_set(), "the victim's was done beside it"


async def test_errors_of_a_source_are_told_across_the_processes(
    pool: ConfinedPool, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("x = 1\ndef\n")

    with pytest.raises(ProgramRejected, match=r"^wrong.py, line 2: "):
        await pool.call(MALLORY, "wrong", check_file, str(wrong), "wrong", seconds=5)


async def test_many_jobs_of_one_user_leave_a_process_for_the_next(
    pool: ConfinedPool, folder: Path
) -> None:
    """Counted in jobs: few of mallory's hundred end before the victim's only one."""
    text, done = "ab " * 20_000, []

    async def tokenize(owner: Owner) -> None:
        await pool.call(owner, "a text", encode, str(folder), text, seconds=5)
        done.append(owner.user)

    async with trio.open_nursery() as nursery:  # so that both processes are there
        nursery.start_soon(tokenize, VICTIM)
        nursery.start_soon(tokenize, MALLORY)
    done.clear()
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(tokenize, MALLORY)
        await trio.testing.wait_all_tasks_blocked()
        await tokenize(VICTIM)
        assert done.count("mallory") <= 10
        nursery.cancel_scope.cancel()
    await tokenize(MALLORY)  # what was given up keeps no place


async def test_who_waits_for_a_job_as_the_server_stops_is_told_so() -> None:
    pool = ConfinedPool(ConfinedConfig(processes=1))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait() -> None:
            with failure("busy", "the server is stopping"):
                await pool.call(VICTIM, "it", time.sleep, 60)

        await trio.testing.wait_all_tasks_blocked()
        pool.close()


async def test_a_limit_counts_the_work_and_not_the_start_or_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The start is a module that takes long to import; busy with others is a stopped process."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, body in {"quick": "return 7", "endless": "\n    while True: pass"}.items():
        burns = "import time\nwhile time.process_time() < 1.2: pass\n"
        (tmp_path / f"{name}_job.py").write_text(f"{burns}def job(): {body}\n")
    alone = ConfinedPool(ConfinedConfig(processes=1))
    quick, endless = (importlib.import_module(f"{name}_job").job for name in ("quick", "endless"))
    assert await alone.call(VICTIM, "it", quick, seconds=0.01) == 7
    with pytest.raises(JobStopped, match=r"it takes more than 0\.01 s of CPU time"):
        await alone.call(MALLORY, "it", endless, seconds=0.01)

    looks: list[bool] = []
    look = GroupTime.goes_on

    def counted(time: GroupTime) -> bool:
        looks.append(look(time))
        return looks[-1]

    monkeypatch.setattr(GroupTime, "goes_on", counted)
    process = await alone.call(VICTIM, "it", os.getpid, seconds=0.01)
    monkeypatch.setattr(pool_module, "_IDLE_SECONDS", 0.1)  # once it has started: that may wait
    os.kill(process, signal.SIGSTOP)
    found: list[int] = []

    async def ask() -> None:
        found.append(await alone.call(VICTIM, "it", os.getpid, seconds=0.01))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        before = len(looks)
        while len(looks) < before + 15:  # longer than the seconds and what was allowed beside them
            await trio.sleep(0.01)
        os.kill(process, signal.SIGCONT)
    assert found == [process]
    with pytest.raises(JobStopped, match="come to a halt"):
        await alone.call(MALLORY, "it", time.sleep, 3600, seconds=0.01)
    alone.close()


async def test_a_process_holds_no_more_memory_than_it_may(folder: Path) -> None:
    small = ConfinedPool(ConfinedConfig(processes=1, memory=128 << 20))

    with pytest.raises(JobStopped, match="takes more than 128 MiB"):
        await small.call(MALLORY, "a text", encode, str(folder), "\n" * (8 << 20), seconds=20)
    assert len(await small.call(VICTIM, "a text", encode, str(folder), "ab", seconds=5))
    small.close()


def test_few_parts_of_a_photo_are_looked_at() -> None:
    plain = io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (30, 20)).save(plain, "JPEG", exif=exif)
    start, rest = plain.getvalue()[:2], plain.getvalue()[2:]
    ballast = b"".join(
        b"\xff" + bytes([0xE2 + i % 12]) + (65535).to_bytes(2) + bytes(65533) for i in range(600)
    )
    photo = start + ballast + rest
    assert image_size(photo) == image_size(plain.getvalue()) == ImageSize(20, 30)
    assert image_size(start + ballast * 2 + rest) is None


def test_a_call_takes_so_many_tokens(folder: Path) -> None:
    """Wasmtime takes them out of a guest one by one, while no other guest runs."""
    models: Any = SimpleNamespace(services={}, codec=lambda model: TextCodec(folder))
    nothing: Any = None
    calls = TokenizeCalls(models, nothing, nothing)
    with failure("limit-exceeded", f"{MAX_TOKENS + 1} tokens; {MAX_TOKENS} at most a call"):
        calls.detokenize(nothing, "a model", [5] * (MAX_TOKENS + 1))
    assert calls.detokenize(nothing, "a model", [5] * 10)


async def test_processes_that_cannot_be_started_take_no_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file handles are left, say, for a moment: later jobs are done all the same."""
    pool = ConfinedPool(ConfinedConfig(processes=2))
    source = tmp_path / "it.py"
    source.write_text("1")

    async def check(owner: Owner) -> None:
        await pool.call(owner, "it", check_file, str(source), "it", seconds=5.0)

    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "/no/such/python")
        for number in range(5):
            with failure("out-of-resources", "cannot start a process", "try again later"):
                await check(Owner(f"user {number}", ""))
    await check(VICTIM)
    pool.close()
