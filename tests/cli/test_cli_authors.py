"""The commands that authors use beside `run`: help, completion, doctor, `--watch`."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result
from support.doc_scripts import load_script
from support.servers import NO_MODEL, Server

from pie_py.build.library import library
from pie_py.cli import main
from pie_py.cli.target import find_target


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with Server(**NO_MODEL) as server:
        yield server.endpoint


def test_every_help_has_an_example_of_the_command() -> None:
    helps = list(load_script("make_site").helps(main, "pie-py", None))
    assert len(helps) > 35
    for path, text in helps:
        example = text.partition("\nExample:\n")[2] or text.partition("\n  Example:\n")[2]
        assert example.strip().startswith(path.removesuffix(" keys")), path


def test_completion() -> None:
    asked = {"COMP_WORDS": "pie-py pro", "COMP_CWORD": "1", "_PIE_PY_COMPLETE": "bash_complete"}
    told = subprocess.run(
        [sys.executable, "-c", "from pie_py.cli import main; main(prog_name='pie-py')"],
        env=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "plain,programs\n"


def test_the_doctor(tmp_path: Path) -> None:
    environment = {"PIE_PY_DATA_FOLDER": str(tmp_path)}
    wrong = {"PIE_PY_KEY": str(tmp_path / "none"), "CC": "/nowhere/cc"}
    done = CliRunner().invoke(main, ["doctor", "--json"], env={**environment, **wrong})
    found = {one["what"]: one for one in json.loads(done.stdout)}
    assert found["PyTorch"]["state"] == "ok"
    assert "`run`" not in found["JavaScript runtime"]["mend"]  # a server that runs builds none
    assert found["PIE_PY_KEY"]["state"] == "bad"
    assert all(one["mend"] for one in found.values() if one["state"] != "ok")
    assert done.exit_code == 1
    kernels = found["CPU kernels"]
    assert (kernels["state"], kernels["mend"]) == ("missing", "a C compiler, as cc")
    assert CliRunner().invoke(main, ["doctor"], env=environment).exit_code == 0
    no_folder = {"PIE_PY_CACHE_FOLDER": "/dev/null/pie_py"}
    assert "can't be written" in CliRunner().invoke(main, ["doctor"], env=no_folder).stdout


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("PIE_PY_ENDPOINT", "localhost:7743", "PIE_PY_ENDPOINT"),
        ("PIE_PY_MODELS", "{bad", "settings"),
        ("PIE_PY_LIMITS__MEMORY", "much", "settings"),
    ],
)
def test_the_doctor_names_a_wrong_variable(variable: str, value: str, what: str) -> None:
    done = CliRunner().invoke(main, ["doctor", "--json"], env={variable: value})
    found = {one["what"]: one for one in json.loads(done.stdout)}
    assert (found[what]["state"], done.exit_code) == ("bad", 1)
    assert variable in found[what]["found"] or value in found[what]["found"]
    assert found["Python"]["state"] == "ok"


def test_listings_print_json(endpoint: str, tmp_path: Path) -> None:
    listings = (
        ["ps", "--all"], ["quota"], ["usage"], ["models"], ["programs"], ["adapters", "list"],
        ["mcp", "list"], ["top"],
    )  # fmt: skip
    for words in listings:
        done = CliRunner().invoke(main, [*words, "--json", "--endpoint", endpoint])
        assert isinstance(json.loads(done.stdout), dict | list), words
    for words in (["inferlets"], ["keys", "list", "--data-folder", str(tmp_path)]):
        assert isinstance(json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout), list)


@contextmanager
def running(
    *command: str, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """A process of Python's, which is killed at the end, with its output and its errors."""
    words = [sys.executable, *command]
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, **options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process, process.stdout, process.stderr
        finally:
            process.kill()


def test_an_interrupt_while_the_interpreter_ends_has_no_traceback() -> None:
    """`--watch` interrupts its runs, and one may be over just then."""
    code = """
import sys, threading, time
from pie_py.cli import run

def late():
    threading.main_thread().join()  # the command is over, and the interpreter waits for threads
    print("late", flush=True)
    time.sleep(60)

threading.Thread(target=late).start()
sys.argv = ["pie-py", "--version"]
run()
"""
    with running("-c", code) as (process, stdout, _):
        _until(stdout, "late\n")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=40)[1] == ""


def test_watch_runs_again_at_each_save(endpoint: str, tmp_path: Path) -> None:
    program = tmp_path / "it.py"
    program.write_text("from part import text\n\nasync def main():\n    return text\n")
    part = tmp_path / "part.py"
    part.write_text("text = 'one'\n")
    watched = ("-m", "pie_py", "run", str(program), "--watch", "--endpoint", endpoint)
    with running(*watched) as (process, stdout, stderr):
        assert stdout.readline() == "one\n"
        part.write_text("text = 1 / 0\n")
        _until(stderr, "ZeroDivisionError")
        program.write_text("import asyncio\n\nasync def main():\n    await asyncio.sleep(1000)\n")
        _until(stderr, "has changed")
        program.write_text("async def main():\n    return 'three'\n")
        assert stdout.readline() == "three\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 130
        assert "Traceback" not in stderr.read()


@pytest.mark.parametrize(
    "step", ["zmq.Socket.disable_monitor", "asyncio.selector_events.BaseSelectorEventLoop.close"]
)
def test_an_interrupt_while_a_run_is_leaving_has_no_traceback(
    step: str, endpoint: str, tmp_path: Path
) -> None:
    program = tmp_path / "it.py"
    program.write_text("async def main():\n    return 'done'\n")
    owner, name = step.rsplit(".", 1)
    leaving = f"""
import asyncio, os, signal, sys, zmq
from pie_py.cli import main
real = {step}
def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    real(self)
{owner}.{name} = interrupted
main(["run", sys.argv[1], "--endpoint", sys.argv[2]])
"""
    done = subprocess.run(
        [sys.executable, "-c", leaving, program, endpoint], capture_output=True, text=True
    )
    assert done.returncode in (0, 130)
    assert (done.stdout, "Traceback" in done.stderr) == ("done\n", False)


def _until(stream: IO[str], text: str) -> str:
    return next(line for line in stream if text in line)


def test_a_breakpoint_opens_pdb_over_the_session(endpoint: str, tmp_path: Path) -> None:
    program = tmp_path / "it.py"
    program.write_text(
        "def double(n):\n    twice = n * 2\n    breakpoint()\n    return twice\n\n"
        "async def main():\n    return f'total {double(5) + double(6)}'\n"
    )
    command = [sys.executable, "-m", "pie_py", "run", str(program), "--endpoint", endpoint]
    commands = "p twice\nl\nb 7\ntwice = 100\nc\nw\nc\n"
    done = subprocess.run(command, input=commands, capture_output=True, text=True, timeout=60)
    assert done.stdout == "total 112\n", done.stderr
    assert "(pdb) 10\n" in done.stderr
    assert "  4  \t    return twice" in done.stderr
    assert "Breakpoint 1 at it/it.py:7" in done.stderr
    assert "it/it.py(7)main()" in done.stderr
    done = subprocess.run(command, input="q\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "BdbQuit" in done.stderr


@pytest.mark.parametrize("command", ["models", "top", "test"])
def test_ctrl_c_ends_a_command_quietly(command: str, tmp_path: Path) -> None:
    """As a terminal does it: the signal goes to all processes of the group."""
    silent = socket.create_server(("127.0.0.1", 0))  # it never answers
    endless = tmp_path / "test_endless.py"
    endless.write_text("import time\n\ndef test_it():\n    print('x')\n    time.sleep(100)\n")
    arguments = {"test": ["-s", "-p", "no:cacheprovider"]}.get(
        command, ["--endpoint", f"tcp://127.0.0.1:{silent.getsockname()[1]}"]
    )
    command_line = ("-c", STARTED, command, *arguments)
    with (
        ExitStack() as open_until_then,
        running(*command_line, cwd=tmp_path, process_group=0) as (process, stdout, _),
    ):
        open_until_then.enter_context(silent)
        _until(stdout, "x" if command == "test" else "started")
        if command != "test":  # a server that hangs up is none, and the command says so
            open_until_then.enter_context(silent.accept()[0])
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=40)
    assert process.returncode == (2 if command == "test" else 130), told
    assert "Traceback" not in told
    assert "Aborted" not in told


# What a shell runs in the background is started with the signal ignored, and so are its children.
STARTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
print("started", flush=True)
from pie_py.cli import main
main(sys.argv[1:])
"""


LIBRARY = Path(__file__).parents[2] / "inferlets"


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_the_library_is_listed() -> None:
    listed = json.loads(invoke("inferlets", "--json").stdout)
    sources = [*LIBRARY.glob("*/main.py"), *LIBRARY.glob("*/inferlet.toml")]
    folders = {source.parent.name for source in sources}
    assert {row["name"] for row in listed} == folders
    assert all(10 < len(row["description"]) <= 100 for row in listed)
    assert "beam_search" in invoke("inferlets").stdout


@pytest.mark.parametrize("row", list(library()), ids=lambda row: row["name"])
def test_each_can_be_run_by_name_and_says_what_to_expect(row: dict[str, str]) -> None:
    found = find_target(row["name"])
    assert found is not None
    assert found.path.exists()
    readme = (LIBRARY / row["name"] / "README.md").read_text(encoding="utf-8")
    assert f"pie-py run {row['name']}" in readme
    assert "## What to expect" in readme


def test_a_copy_is_there_to_be_changed(tmp_path: Path) -> None:
    copied = invoke("inferlets", "copy", "beam_search", tmp_path / "mine")
    assert copied.exit_code == 0, copied.output
    assert ast.parse((tmp_path / "mine/main.py").read_text())
    found = find_target(str(tmp_path / "mine"))
    assert found is not None
    assert found.kind == "python"
    again = invoke("inferlets", "copy", "beam_search", tmp_path / "mine")
    assert again.exit_code == 2
    assert "name another folder" in again.output
    unknown = invoke("inferlets", "copy", "no_such_one")
    assert unknown.exit_code == 2
    assert "lists them" in unknown.output
