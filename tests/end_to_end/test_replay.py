"""Programs' API calls, recorded by a real server, and replayed without it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rust_components import rust_component
from support.servers import Server

from pie_control.replaying.__main__ import Output
from pie_control.replaying.player import Player
from pie_control.replaying.run import replay as run_again
from pie_py.client import InferletFailed
from pie_py.config.server import ServerConfig
from pie_py.config.shipped_files import shipped_folder
from pie_py.testing.script import replaying
from pie_py.wire.record import BadRecord, read_record

PROGRAM = """\
import random
import time
from inferlet import Context, Model, Sampler, session

async def main(word: str, fail: int = 0) -> str:
    began = time.monotonic()
    context = Context(Model.load()).fill(word)
    text = await context.generate(Sampler.top_p(1.0, 0.9), max_tokens=6).collect_text()
    session.send_blob(b"\\xff\\x00 and bytes\\n")
    line = await session.receive()
    print("the client says", line)
    session.send(f"{text} {line} {random.random()} {time.time()}\\n")
    if fail:
        raise ValueError(f"no good after {time.monotonic() - began > 0}")
    return text
"""


def replay(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pie_py", "replay", *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    settings = {**replaying(folder), "recording": {"folder": str(folder / "records")}}
    with Server(folder, **settings, limits={"cpu_seconds": 5.0}) as running:
        yield running


def record(server: Server, folder: Path, *args: str, source: str = PROGRAM) -> tuple[Path, str]:
    """A run's record, and what it sent and returned as `run` shows it."""
    with server.client() as client:
        instance = client.launch(client.upload(source.encode(), "it"), args)
        instance.send("hello")
        shown = ""
        try:
            for message in instance:
                shown += message if isinstance(message, str) else message.decode(errors="replace")
            shown += instance.result()
        except InferletFailed as error:
            shown += str(error)
        return folder / "records" / f"{instance.id}.jsonl", shown


@pytest.fixture(scope="module")
def good(server: Server, folder: Path) -> tuple[Path, str]:
    (folder / "model" / "script.json").write_text(
        json.dumps([{"text": "a mouse in the house", "tokens": [], "when": ""}])
    )
    return record(server, folder, "--word", "Once")


def test_a_run_comes_again(good: tuple[Path, str]) -> None:
    path, shown = good
    assert path.stat().st_mode & 0o777 == 0o600
    done = replay(path, "--calls")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == shown.rstrip("\n")
    assert "the client says hello" in done.stderr
    assert "runtime.take-text(future=" in done.stderr
    assert "the end is the record's" in done.stderr


def test_a_failure_comes_again_with_its_traceback(server: Server, folder: Path) -> None:
    path, shown = record(server, folder, "--word", "Once", "--fail", "1")
    assert 'File "it.py", line 14, in main' in shown
    done = replay(path)
    assert done.returncode == 1
    assert "ValueError: no good after True" in done.stderr
    assert 'File "it.py", line 14, in main' in done.stderr
    assert "the end is the record's" in done.stderr


def test_a_changed_program_may_print_more_but_not_ask_for_more(
    good: tuple[Path, str], tmp_path: Path
) -> None:
    path, shown = good
    changed = tmp_path / "it.py"
    changed.write_text(PROGRAM.replace("    line = ", "    print('more', len(text))\n    line = "))
    done = replay(path, "--source", changed)
    assert done.returncode == 0, done.stderr
    assert "more " in done.stderr
    assert done.stdout.rstrip("\n") == shown.rstrip("\n")
    changed.write_text(PROGRAM.replace("session.send(f", "session.send('and' + f"))
    done = replay(path, "--source", changed)
    assert done.returncode == 1
    assert "departs at call" in done.stderr
    assert 'the program  session.send(message="and' in done.stderr
    assert 'the record   session.send(message="' in done.stderr
    assert 'File "it.py", line 12, in main' in done.stderr  # where it departs


def test_a_breakpoint_in_a_replay(good: tuple[Path, str], tmp_path: Path) -> None:
    path, shown = good
    changed = tmp_path / "it.py"
    changed.write_text(PROGRAM.replace("    print(", "    breakpoint(); print("))
    done = replay(path, "--source", changed, stdin="p line\nc\n")
    assert done.returncode == 0, done.stderr
    assert "(pdb) 'hello'" in done.stderr
    assert done.stdout.rstrip("\n") == shown.rstrip("\n")


def test_a_killed_run_comes_again_as_far_as_it_went(server: Server, folder: Path) -> None:
    source = PROGRAM.replace("    print(", "    await session.receive(); print(")
    with server.client() as client:
        instance = client.launch(client.upload(source.encode(), "it"), ["--word", "Once"])
        instance.send("hello")
        next(iter(instance))
        instance.cancel()
    done = replay(folder / "records" / f"{instance.id}.jsonl")
    assert done.returncode == 0, done.stderr
    assert "the record ends here, after" in done.stderr
    assert "and bytes" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "beam_search",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("code_act", "jacobi_decoding")
        ),
    ],
)
def test_programs_of_the_library(server: Server, folder: Path, name: str) -> None:
    source = (shipped_folder("inferlets") / name / "main.py").read_text(encoding="utf-8")
    path, shown = record(server, folder, source=source)
    kept = read_record(path)
    player = Player(kept, Output(calls=False))
    outcome = run_again(player, Path(ServerConfig().cache_folder), print)
    assert (player.departure, player.replayed) == (None, player.total), shown
    assert player.total > 25
    assert (outcome.ok, outcome.text) == (kept.end == "finished", kept.text)


def test_a_rust_program(server: Server, folder: Path) -> None:
    with server.client() as client:
        program = client.upload(rust_component("guests"))
        instance = client.launch(program, ["panic"])
        with pytest.raises(InferletFailed) as caught:
            instance.result()
    done = replay(folder / "records" / f"{instance.id}.jsonl", "--calls")
    assert done.returncode == 1
    assert str(caught.value).partition(" (in")[0] in done.stderr
    assert "panicked at src/bad.rs:" in done.stderr
    assert "the end is the record's" in done.stderr


def test_what_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "x"
    for text in ("", "no", "[]", "{}", '{"record": 99}'):
        file.write_text(text)
        with pytest.raises(BadRecord, match=str(file)):
            read_record(file)
    done = replay(file)
    assert done.returncode == 1
    assert done.stderr == f"error: {file} is a record of format 99, and this pie-py reads 1\n"


@pytest.mark.slow
def test_run_records(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    program = tmp_path / "it.py"
    program.write_text("def main():\n    print('x')\n    return 'done'\n")
    command = [sys.executable, "-m", "pie_py", "run", str(program), "--record", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"pie-py replay {file}" in done.stderr
    assert replay(file).stdout == done.stdout == "done\n"
