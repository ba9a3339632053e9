"""The command line with real servers: control process, worker, embedded model, Python inferlets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

import httpx2
import psutil
import pytest
from click.testing import CliRunner
from support.child_processes import command_line
from support.servers import Server
from support.traps import set_traps, trapped

from pie_py.cli import kept_servers, main, reached
from pie_py.cli.connect import At
from pie_py.testing.script import replaying

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(
        str(ROOT / part)
        for part in ("", "control", "inference", "gateway", "cluster", "sdk/python")
    ),
}

TALKER = """
from inferlet import runtime, session

async def main(args):
    if args[:1] == ["wrong"]:
        raise SystemExit("usage: talker [wrong|fail|forever]")
    if args[:1] == ["fail"]:
        raise ValueError("it was asked to fail")
    for word in args:
        session.send(word + "\\n")
    while args[:1] == ["forever"]:
        print("still here")
        await runtime.sleep(0.05)
    return "the result"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(replays=[]) as server:
        (server.folder / "talker.py").write_text(TALKER)
        yield server


def started(
    *args: str | Path,
    cwd: Path | None = None,
    stdin: int = DEVNULL,
    stderr: int = PIPE,
    **environment: Any,
) -> subprocess.Popen[str]:
    """A command, which reads nothing unless it is told to."""
    command = [sys.executable, "-m", "pie_py", *map(str, args)]
    env = {**os.environ, **ENVIRONMENT, **environment}
    return subprocess.Popen(
        command, cwd=cwd, env=env, text=True, stdin=stdin, stdout=PIPE, stderr=stderr
    )


def cli(
    *args: str | Path, cwd: Path | None = None, **environment: Any
) -> subprocess.CompletedProcess[str]:
    with started(*args, cwd=cwd, **environment) as process:
        told = process.communicate(timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, *told)


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder of modules that others would import if it were on their path, with a program."""
    set_traps(tmp_path)
    (tmp_path / "hi.py").write_text("async def main():\n    return 'hi'\n")
    return tmp_path


def without_model(folder: Path) -> dict[str, Any]:
    """What a server is told that has a data folder, and a worker that has no model to load."""
    settings = replaying(folder)
    return {
        "PIE_PY_DATA_FOLDER": str(folder),
        "PIE_PY_MODELS": json.dumps(settings["models"]),
        "PIE_PY_WORKER_MODULE": settings["worker_module"],
    }


def ask(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """As `cli`, in this process: for commands that only ask a server."""
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)


def talker(server: Server) -> Path:
    return server.folder / "talker.py"


@pytest.mark.slow
def test_run_upload_launch_ps_logs_kill(server: Server) -> None:
    here = ("--endpoint", server.endpoint)
    run = cli("run", talker(server), *here, "one", "--two", "3", "--", "--endpoint")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "one\n--two\n3\n--endpoint\nthe result\n"
    failed = ask("run", talker(server), *here, "fail")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "it was asked to fail" in failed.stderr
    wrong = ask("run", talker(server), *here, "wrong")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("usage: talker")

    digest = ask("upload", talker(server), "--name", "chat", *here).stdout.strip()
    assert len(digest) == 64
    programs = json.loads(ask("programs", "--json", *here).stdout)
    assert {p["name"] for p in programs} == {"talker", "chat"}
    launched = ask("launch", digest[:10], *here, "hello")
    assert launched.stdout == "hello\nthe result\n"

    instance = ask("launch", "chat", "--detach", *here, "forever").stdout.strip()
    (shown,) = json.loads(ask("ps", "--json", *here).stdout)
    assert (shown["id"], shown["state"], shown["user"]) == (instance, "running", "local")
    assert instance in ask("ps", *here).stdout
    assert "still here" in ask("logs", instance, *here).stdout
    killed = ask("kill", instance, *here)
    assert killed.stderr == f"{instance} is killed\n"
    attached = ask("attach", instance, *here)
    assert (attached.returncode, attached.stdout) == (1, "forever\n")
    assert "killed: by local" in attached.stderr
    assert ask("ps", *here).stdout.count("\n") == 1
    removed = ask("programs", "rm", "chat", *here)
    assert removed.stderr == f"chat ({digest[:12]}) is removed\n"
    assert ask("programs", *here).stdout.count("\n") == 2
    assert ask("programs", "rm", "chat", *here).returncode == 1
    assert "replay" in ask("models", *here).stdout


@pytest.mark.slow
def test_what_a_program_prints_is_seen(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "prints.py"
    program.write_text(
        "async def forgotten(): pass\n"
        "async def main():\n    print('a line')\n    forgotten()\n    return 'done'\n"
    )
    seen = ask("run", "--endpoint", server.endpoint, program)
    assert seen.stdout == "done\n"
    assert seen.stderr.startswith("a line\n")
    assert "coroutine 'forgotten' was never awaited" in seen.stderr
    assert ask("run", "--endpoint", server.endpoint, "--no-log", program).stderr == ""


def test_the_traits_of_a_model(server: Server) -> None:
    here = ("--endpoint", server.endpoint)
    traits = ask("models", "--traits", *here).stdout.split("\n")
    assert {"runtime", "session", "messaging", "allocate", "forward", "sample"} <= set(traits)
    assert "input-image" not in traits
    assert ask("models", "replay", "--traits", *here).stdout.split("\n") == traits
    wrong = ask("models", "gpt-9", *here)
    assert wrong.returncode == 2
    assert "gpt-9" in wrong.stderr
    assert "replay" in wrong.stderr


@pytest.mark.slow
def test_ctrl_c_cancels_what_run_started(server: Server) -> None:
    process = started("run", talker(server), "forever", PIE_PY_ENDPOINT=server.endpoint)
    assert process.stdout is not None
    assert process.stdout.readline() == "forever\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.startswith("cancelling talker-")
    with server.client() as client:
        assert not client.instances()
        assert client.instances(ended=True)[-1]["state"] == "killed"


def open_line(words: list[str], server: Server, stderr: int) -> subprocess.Popen[str]:
    """A command that has printed `an open line`, whose reader has gone since."""
    # Unbuffered, nothing would be left for the interpreter's exit to flush.
    here = server.endpoint
    process = started(*words, stdin=PIPE, stderr=stderr, PIE_PY_ENDPOINT=here, PYTHONUNBUFFERED="")
    assert process.stdout is not None
    assert process.stdout.read(12) == "an open line"
    process.stdout.close()
    return process


@pytest.mark.parametrize("both", [False, True])
def test_ctrl_c_in_a_pipeline_cancels_though_its_reader_has_gone(
    server: Server, tmp_path: Path, both: bool
) -> None:
    """The terminal interrupts the reader as well, as in `pie-py run … 2>&1 | tee log`."""
    program = tmp_path / "open.py"
    text = "import asyncio\nfrom inferlet import session\n\nasync def main():\n"
    program.write_text(f"{text}    session.send('an open line')\n    await asyncio.sleep(60)\n")
    process = open_line(["run", str(program)], server, STDOUT if both else PIPE)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    if process.stderr is not None:
        assert process.stderr.read().startswith("cancelling open-")
        process.stderr.close()
    with server.client() as client:
        assert client.instances(ended=True)[-1]["state"] == "killed"


@pytest.mark.parametrize("logs", [False, True])
def test_standard_error_without_a_reader_is_no_error(
    server: Server, tmp_path: Path, logs: bool
) -> None:
    """Who attaches is detached; what a program logs ends the run, as its messages would."""
    program = tmp_path / "logs.py"
    text = "import asyncio\nfrom inferlet import session\n\nasync def main():\n"
    text += "    session.send('an open line')\n    await session.receive()\n"
    text += "    while True:\n        print('x')\n        await asyncio.sleep(0.1)\n"
    program.write_text(text)
    with server.client() as client:
        digest = client.upload(program.read_bytes(), "logs")
        kept = None if logs else client.launch(digest)
        words = ["launch", digest] if kept is None else ["attach", kept.id]
        process = open_line(words, server, STDOUT)
        assert process.stdin is not None
        if kept is None:
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.wait(30) == 0
        else:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert kept.id in [each["id"] for each in client.instances()]
            kept.cancel()
        process.stdin.close()


def with_environment(name: str, value: str) -> list[psutil.Process]:
    """The processes, whoever their parent is by now, that were started with a variable."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value:
                found.append(process)
    return found


@pytest.mark.slow
def test_run_starts_a_server_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    args = ("--prompt", "Once upon", "--max-tokens", "5")
    run = cli("run", "text_completion", "--threads", "1", *args, PIE_PY_DATA_FOLDER=str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("\n")
    assert "starting a server with pie-tiny" in run.stderr
    left = with_environment("PIE_PY_DATA_FOLDER", str(tmp_path))
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive, "its server and worker end with it"
    missing = cli("run", "text_completion", "--model", "/nowhere", *args)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "/nowhere" in missing.stderr


@contextlib.contextmanager
def served(
    *args: str, cwd: Path | None = None, **environment: Any
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`pie-py serve` once it is ready, and what it has said by then."""
    process = started("serve", "--threads", "1", *args, cwd=cwd, **environment)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "ready at" in line:
                break
        yield process, said
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_gateway_that_dies_is_replaced_at_its_address(short_folder: Path) -> None:
    here = ("--endpoint", f"ipc://{short_folder}/door", "--log-format", "json")
    with served(*here, PIE_PY_DATA_FOLDER=str(short_folder / "data")) as (process, said):
        lines = [json.loads(line) for line in said]
        (url,) = [line["event"].split()[-1] for line in lines if "HTTP at" in line["event"]]
        assert "worker ready" in [line["event"] for line in lines]
        started = next(line for line in lines if "device" in line and "worker" in line["event"])
        assert started["level"] == "info"
        for _ in range(2):
            (gateway,) = [
                child
                for child in psutil.Process(process.pid).children()
                if "pie_gateway" in command_line(child)
            ]
            gateway.kill()
            assert process.stderr is not None
            lost = next(line for line in process.stderr if "gateway lost" in line)
            again = next(line for line in process.stderr if "gateway ready again" in line)
            assert json.loads(lost)["reason"] == f"it exited with status {-signal.SIGKILL}"
            assert json.loads(again)["url"] == url
            assert httpx2.get(f"{url}/ready").status_code == 200
        (server,) = [
            child
            for child in psutil.Process(process.pid).children()
            if "pie_control" in command_line(child)
        ]
        server.kill()
        assert process.wait(60) == 128 + signal.SIGKILL
        assert process.stderr is not None
        assert "was ended by another process or the system: Killed" in process.stderr.read()


@pytest.mark.slow
def test_serve_keeps_its_endpoint_and_keys_where_clients_have_theirs(tmp_path: Path) -> None:
    data, key, config = tmp_path / "data", tmp_path / "ann.json", tmp_path / "pie.toml"
    assert ask("keys", "add", "ann", "-o", key, "--data-folder", data).returncode == 0
    config.write_text(
        f'endpoint = "tcp://0.0.0.0:*"\ndata_folder = "{data}"\n[gateway]\nenabled = false\n'
    )
    of_clients = "tcp://127.0.0.1:7743"
    environment = without_model(data) | {"PIE_PY_ENDPOINT": of_clients}
    with served("--config", str(config), **environment) as (_, said):
        (endpoint,) = [line.split()[2].rstrip(";") for line in said if "ready at" in line]
        assert endpoint.startswith("tcp://0.0.0.0:")
        here = ("--endpoint", endpoint.replace("0.0.0.0", "127.0.0.1"))
        assert "wants a key" in ask("models", *here).stderr
        assert ask("models", *here, "--key", key).returncode == 0


@pytest.mark.slow
def test_words_that_begin_with_a_dash_go_to_the_inferlet(server: Server) -> None:
    here = ("--endpoint", server.endpoint)
    words = ["--prompt", "- oh", "-5", "-xh", "--x y", "-", "--keyword", "-h2", "a\n-h"]
    told = "".join(f"{word}\n" for word in [*words, "-h", "--help", "--", "--key"])
    digest = ask("upload", talker(server), *here).stdout.strip()
    for command in (("run", talker(server)), ("launch", digest)):
        done = ask(*command, *words, *here, "--", "-h", "--help", "--", "--key")
        assert (done.returncode, done.stdout) == (0, f"{told}the result\n"), done.stderr
        for word in ("-h", "--help"):
            given = ask(*command, *here, "--prompt", word)
            assert given.stdout == f"--prompt\n{word}\nthe result\n"
            assert ask(command[0], word).stdout.startswith("Usage: ")
        missing = ask(*command, "--prompt", "x", "--endpoint")
        assert missing.returncode == 2
        assert "'--endpoint' requires an argument" in missing.stderr


@pytest.mark.slow
def test_serve_says_where_and_stops_on_sigterm(tmp_path: Path, short_folder: Path) -> None:
    environment = without_model(tmp_path)
    endpoint = f"ipc://{short_folder}/door"
    with served("--endpoint", endpoint, **environment) as (process, said):
        assert endpoint in said[-1]
        (url,) = [line.split()[-1] for line in said if line.startswith("HTTP at ")]
        assert httpx2.get(f"{url}/ready").status_code == 200
        noted = json.loads(cli("status", "--json", **environment).stdout)
        (mine,) = (one for one in noted if one["endpoint"] == endpoint)
        assert (mine["http"], mine["pid"]) == (url, process.pid)
        assert "no such server" in cli("stop", **environment, TMPDIR=str(short_folder)).stderr
        second = cli("serve", "--endpoint", endpoint, **environment)
        assert second.returncode == 1
        assert f"{endpoint} is in use already" in second.stderr
    assert process.returncode == 0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/ready")
    gone = ask("ps", "--endpoint", endpoint)
    assert gone.returncode == 1
    refused = cli("serve", "--endpoint", "tcp://0.0.0.0:0", **environment)
    assert refused.returncode == 2
    assert "pie-py keys add USER" in refused.stderr


@pytest.mark.nightly
def test_the_folder_one_stands_in_is_on_no_process_import_path(
    traps: Path, short_folder: Path
) -> None:
    """Its `random.py` is the user's or a stranger's: neither stops a server, nor runs in one."""
    data = str(traps / "data")
    endpoint = f"ipc://{short_folder}/door"
    ranks = ("--endpoint", endpoint, "--tensor-parallel-size", "2")
    with served(*ranks, cwd=traps, PIE_PY_DATA_FOLDER=data) as (_, said):
        assert endpoint in said[-1]
        (url,) = [line.split()[-1] for line in said if line.startswith("HTTP at ")]
        assert httpx2.get(f"{url}/ready").status_code == 200
        run = cli("run", "hi.py", "--endpoint", endpoint, cwd=traps)
        assert (run.returncode, run.stdout) == (0, "hi\n"), run.stderr
    assert not trapped(traps)


def test_tests_run_in_a_folder_with_names_of_the_standard_library(traps: Path) -> None:
    (traps / "test_hi.py").write_text("import hi\n\ndef test_hi():\n    assert hi.main\n")
    tested = cli("test", "-q", cwd=traps)
    assert tested.returncode == 0, tested.stdout
    assert not trapped(traps)


@pytest.fixture
def keeping(traps: Path) -> Iterator[dict[str, Any]]:
    """The environment of commands that keep servers, in a folder whose path is short."""
    with tempfile.TemporaryDirectory(prefix="pie-", ignore_cleanup_errors=True) as folder:
        environment = {**without_model(traps), "TMPDIR": folder}
        yield environment
        assert cli("stop", **environment).returncode == 0


@pytest.mark.slow
def test_the_folder_for_temporary_files_may_have_a_long_name(traps: Path) -> None:
    folder = traps / ("long" * 30)  # no socket's path holds as many bytes
    folder.mkdir()
    environment = {**without_model(traps), "TMPDIR": str(folder), "HOME": str(traps)}
    try:
        for options in ((), ("--keep-server",), ("--keep-server",)):
            run_hi(traps, environment, *options)
        assert len(kept(environment)) == 1
    finally:
        cli("stop", **environment)


def kept(environment: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli("status", "--json", **environment).stdout)
    return [one for one in found if "ends" in one]  # not one that runs at the usual endpoint


def wait_for_end(pid: int) -> None:
    """Waits until a process, which is nobody's child, has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)


def run_hi(traps: Path, environment: dict[str, Any], *options: str) -> None:
    done = cli("run", traps / "hi.py", *options, **environment)
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr


def test_a_kept_server_serves_later_runs_with_the_same_settings(
    traps: Path, keeping: dict[str, Any]
) -> None:
    run_hi(traps, keeping, "--keep-server", "--threads", "1")
    (server,) = kept(keeping)
    assert has_lines(server)  # a program in Rust may follow
    place = Path(server["endpoint"].removeprefix("ipc://")).parent
    for folder in (place, place.parent, place.parent.parent):
        assert folder.stat().st_mode & 0o077 == 0
    assert (place / "server.json").stat().st_mode & 0o077 == 0
    again = ("run", traps / "hi.py", "--threads", "1")
    found = cli(*again, **keeping)
    assert (found.stdout, found.stderr) == ("hi\n", "")
    # Others have a server for themselves, which ends with them or stays as well.
    assert "starting" in cli(*again, "--verbose", **keeping).stderr
    assert [one["pid"] for one in kept(keeping)] == [server["pid"]]
    run_hi(traps, {**keeping, "PIE_PY_KEEP_SERVER": "1"}, "--threads", "2")
    assert len(kept(keeping)) == 2
    listed = cli("status", **keeping).stdout
    assert server["endpoint"] in listed
    assert "has ended" in cli("stop", **keeping).stderr
    assert kept(keeping) == []
    wait_for_end(server["pid"])


@pytest.mark.nightly
def test_a_server_that_starts_behind_a_command_is_never_unseen(
    traps: Path, keeping: dict[str, Any]
) -> None:
    own = traps / "own"
    own.mkdir()
    (own / "unready.py").write_text("import sys; sys.stdin.read()")
    path = f"{own}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    waits = {**keeping, "PIE_PY_WORKER_MODULE": "unready", "PYTHONPATH": path}
    command = ("serve", "--detach", "--endpoint", f"ipc://{traps}/door", "--no-http")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        with started(*command, **waits) as starting:
            while not (found := kept(waits)):
                assert starting.poll() is None
            assert [one["endpoint"] for one in found] == [None]
            starting.send_signal(number)
        elsewhere = {**waits, "HOME": str(traps)}
        assert kept(elsewhere) == []
        assert "no such server" in cli("stop", **elsewhere).stderr
        if number != signal.SIGTERM:  # with which the command ends it itself
            assert "has ended" in cli("stop", **waits).stderr
        assert kept(waits) == []
        wait_for_end(found[0]["pid"])


def test_a_detached_server_stays_until_it_is_stopped(traps: Path, keeping: dict[str, Any]) -> None:
    here = ("--endpoint", f"ipc://{traps}/door")
    served = cli("serve", "--detach", *here, "--http", "127.0.0.1:0", **keeping)
    assert served.returncode == 0, served.stderr
    (server,) = kept(keeping)
    assert f"ready at {here[1]}" in served.stderr
    assert httpx2.get(f"{server['http']}/health").status_code == 200
    assert cli("run", traps / "hi.py", *here, **keeping).stdout == "hi\n"
    again = cli("serve", "--detach", *here, "--no-http", **keeping)
    assert again.returncode == 1
    assert "in use" in again.stderr
    assert "no such server runs" in cli("stop", "another", **keeping).stderr
    assert "replay has ended" in cli("stop", "REPLAY", **keeping).stderr
    wait_for_end(server["pid"])
    assert kept(keeping) == []


@pytest.mark.nightly
def test_what_a_worker_does_once_is_told(traps: Path, keeping: dict[str, Any]) -> None:
    own = traps / "own"
    own.mkdir()
    (own / "slow.py").write_text(
        "import zmq\n"
        "from pie_py.testing.replaying_worker import main\n"
        "from pie_py.wire.messages import encode\n"
        "from pie_py.wire.plan import Doing\n"
        "connect = zmq.Socket.connect\n"
        "def connect_and_tell(socket, address):\n"
        "    connect(socket, address)\n"
        "    socket.send(encode(Doing('compiling (once)')))\n"
        "zmq.Socket.connect = connect_and_tell\n"
        "main()\n"
    )
    path = os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(own)))
    slow = {**keeping, "PIE_PY_WORKER_MODULE": "slow", "PYTHONPATH": path}
    done = cli("run", traps / "hi.py", "--keep-server", **slow)
    assert done.stdout == "hi\n"
    # With others of this machine's first start, where it is that.
    assert done.stderr.startswith("starting a server with replay\n")
    assert "\ncompiling (once)\n" in done.stderr


@pytest.mark.nightly
def test_a_kept_server_that_was_killed_is_noticed_and_removed(
    traps: Path, keeping: dict[str, Any]
) -> None:
    run_hi(traps, keeping, "--keep-server")
    (server,) = kept(keeping)
    os.kill(server["pid"], signal.SIGKILL)
    wait_for_end(server["pid"])
    assert kept(keeping) == []
    run_hi(traps, keeping, "--keep-server")
    (another,) = kept(keeping)
    assert another["pid"] != server["pid"]
    assert not Path(server["endpoint"].removeprefix("ipc://")).parent.exists()


@pytest.mark.nightly
def test_a_kept_server_ends_when_nobody_needs_it(traps: Path, keeping: dict[str, Any]) -> None:
    soon = {**keeping, "PIE_PY_IDLE_SECONDS": "0.2"}
    (traps / "talker.py").write_text(TALKER)
    forever = ("run", traps / "talker.py", "--keep-server", "forever")
    with started(*forever, stderr=DEVNULL, **soon) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "forever\n"
        (busy,) = kept(soon)
        with pytest.raises(psutil.TimeoutExpired):  # five times as long as it may be idle
            psutil.Process(busy["pid"]).wait(1)
        running.terminate()
    wait_for_end(busy["pid"])


def has_lines(server: dict[str, Any]) -> bool:
    """Whether it reads source lines, for which the runtime is compiled once more."""
    return '"source_lines":true' in " ".join(psutil.Process(server["pid"]).cmdline())


@pytest.mark.nightly
def test_a_server_for_questions_shares_the_runtimes_code(keeping: dict[str, Any]) -> None:
    cli("ask", "-m", "pie-tiny", "--max-tokens", "1", "Once", TMPDIR=keeping["TMPDIR"])
    (server,) = kept(keeping)
    assert not has_lines(server)


def test_a_folder_is_not_answered_for_by_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = str(tmp_path / "tiny")
    (tmp_path / "tiny").mkdir()
    known = {kept_servers.server_key({"models": (mine,)}): "ipc://mine"}
    monkeypatch.setattr(reached, "use_running", lambda *_: False)
    monkeypatch.setattr(kept_servers, "find_serving", lambda model: ("ipc://another", "tiny"))
    monkeypatch.setattr(kept_servers, "find", known.get)
    none = At(None)
    assert reached.talking_server(none, mine) == (At("ipc://mine"), "")
    assert reached.talking_server(none, "tiny") == (At("ipc://another"), "tiny")


def test_a_server_that_does_not_start_is_not_kept(traps: Path, keeping: dict[str, Any]) -> None:
    broken = {**keeping, "PIE_PY_WORKER_MODULE": "there_is_no_such_module"}
    done = cli("run", traps / "hi.py", "--keep-server", **broken)
    assert done.returncode == 1
    assert "the server did not start" in done.stderr
    assert not list(Path(keeping["TMPDIR"]).glob("pie-py-*/*/*"))


def test_others_may_not_look_into_the_folder_of_kept_servers(
    traps: Path, keeping: dict[str, Any]
) -> None:
    folder = Path(keeping["TMPDIR"], f"pie-py-{os.getuid()}")
    folder.mkdir(mode=0o755)
    done = cli("run", traps / "hi.py", "--keep-server", **keeping)
    assert done.returncode == 1
    assert "you alone may enter" in done.stderr
    run_hi(traps, keeping)  # which keeps nothing, and trusts nothing there
    folder.chmod(0o700)
