"""Children of a process: their reports, their end, and the next one."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pie_py.config.processes import Backoff, Child, GroupTime, Supervisor
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerProcess

# Reports, and ends with its parent; "deaf" does not look for the end of its standard input.
MODULE = """
import os, sys, time
from pie_py.config.child import exit_with_parent, report
if "deaf" not in sys.argv:
    exit_with_parent()
report({"pid": os.getpid()})
print("no JSON", flush=True)
time.sleep(1000)
"""
PARENT = """
import sys, time
from pie_py.config.processes import Child
print(Child(*sys.argv[1:]).next_line()["pid"], flush=True)
time.sleep(1000)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_child.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_child"


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_long_life() -> None:
    now = 0.0
    backoff = Backoff(lambda: now)
    assert [backoff.pause() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    backoff.start()
    now += Backoff.WELL_SECONDS + 1
    assert backoff.pause() == 0.5
    backoff.start()
    assert backoff.pause() == 1.0


def test_what_else_a_server_prints_is_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_server.py").write_text(
        """
from pie_py.config.child import report
print("a policy is loaded")
report({"doing": "loading"})
print('{"loss": 3}')
report({"endpoint": "ipc:///tmp/door"})
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said: list[str] = []
    with ServerProcess(ServerConfig(), module="a_server") as server:
        assert server.wait_ready(said.append) == "ipc:///tmp/door"
    assert said == ["loading"]


def test_a_child_reports_and_ends_in_order(module: str) -> None:
    with Child(module) as child:
        assert child.next_line() == {"pid": child.pid}
        assert child.next_line() == {}
        assert child.next_line(0.01) is None
        assert child.status is None
        assert child.stop() == -signal.SIGKILL  # its own
        with pytest.raises(EOFError):
            child.next_line()


def test_a_child_that_does_not_end_is_killed(module: str) -> None:
    with Child(module, "deaf") as child:
        assert child.next_line() is not None
        assert child.stop(0.1) == child.status == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_ends_with_its_parent_however_that_ends(module: str, stopped: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, module], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    if stopped:
        child.suspend()
    parent.kill()
    parent.communicate()
    child.wait(10)


def test_what_has_ended_is_started_again_until_it_is_to_stop(module: str) -> None:
    lost: queue.Queue[tuple[str, float]] = queue.Queue()
    children: queue.Queue[Child] = queue.Queue()

    def attend(child: Child) -> None:
        children.put(child)
        child.wait()

    supervisor = Supervisor(
        "it",
        lambda: Child(module),
        lambda *what: lost.put(what),
        attend=attend,
        child=Child(module),
        backoff=Backoff(first=0.01, most=0.02),
    )
    for pause in (0.01, 0.02, 0.02):
        children.get(timeout=20).kill()
        assert lost.get(timeout=20) == ("it exited with status -9", pause)
    last = children.get(timeout=20)
    assert supervisor.starts == 4
    supervisor.stop()
    assert last.status is not None
    assert lost.empty()
    assert supervisor.child is None


def test_a_child_that_cannot_be_started_is_tried_again(module: str, tmp_path: Path) -> None:
    lost: queue.Queue[str] = queue.Queue()
    log = tmp_path / "logs" / "log"

    def on_lost(reason: str, pause: float) -> None:
        lost.put(reason)
        log.parent.mkdir(exist_ok=True)

    begun: queue.Queue[int] = queue.Queue()

    def attend(child: Child) -> None:
        begun.put(child.pid)
        child.wait()

    supervisor = Supervisor(
        "it", lambda: Child(module, log=log), on_lost, attend=attend, backoff=Backoff(first=0.01)
    )
    assert "cannot be started" in lost.get(timeout=20)
    assert begun.get(timeout=20)
    supervisor.stop()


def test_processes_of_any_name_are_counted() -> None:
    """Of any user: a name is what a process gives itself, and need be no text."""
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff) R 1 9', 0, 0, 0)"
    command = [sys.executable, "-c", f"{rename}\nprint(1, flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert GroupTime(process.pid).goes_on()
        finally:
            process.kill()
    assert not GroupTime(process.pid).goes_on()
