"""Processes of a machine that outlive who has started them, found again by its folder: its keeper,
and its agent of Ray.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pie_cluster.machines.settings import write_private
from pie_py.config.processes import STOP_SECONDS, python_command

KEEPER, AGENT = "keeper.pid", "agent.pid"  # the first line has it, as systemd reads it
PROCESSES = "processes.json"  # of a keeper, as it sees them


def start_keeper(folder: Path) -> None:
    """Starts the process that keeps this machine's part; it outlives this one, once it can be
    found again.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (folder / PROCESSES).unlink(missing_ok=True)
    with (logs / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            python_command("-m", "pie_cluster.machines.machine", str(folder)),
            stdin=subprocess.PIPE,  # a byte tells it to begin; else this process has gone
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    note(folder / KEEPER, process.pid)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # one that has ended is told of by its log
        process.stdin.write(b"!")


def _birth(pid: int) -> str:
    """When a process began: the machine's start, and ticks since then, for its clock may jump.
    Raises `OSError` if there is no such process.
    """
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    ticks = stat.rpartition(")")[2].split()[19]  # proc(5)
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"


def note(record: Path, pid: int) -> None:
    """Notes a process down, so that it is found again. Raises `OSError`."""
    write_private(record, f"{pid}\n{_birth(pid)}\n")


def _noted(record: Path) -> psutil.Process | None:
    """The process of a record, if it runs."""
    try:
        pid, began = record.read_text().splitlines()
        if _birth(int(pid)) != began:
            return None
        process = psutil.Process(int(pid))
        return process if runs(process) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def keeper(folder: Path) -> psutil.Process | None:
    """The process that keeps a folder's part, if it runs."""
    return _noted(folder / KEEPER)


def left_agent(folder: Path) -> psutil.Process | None:
    """The agent of Ray that runs, with its nodes, though its keeper may have been killed."""
    return _noted(folder / AGENT)


def processes_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each process of a folder's keeper: `pid`, and `ready` or `error` if it has said so; none
    if no keeper has run.
    """
    with suppress(OSError, ValueError):
        told: dict[str, dict[str, Any]] = json.loads((folder / PROCESSES).read_text())
        return told
    return {}


def forget_processes(folder: Path) -> None:
    """A machine runs nothing any more."""
    for name in (KEEPER, AGENT, PROCESSES):
        (folder / name).unlink(missing_ok=True)


def runs(process: psutil.Process) -> bool:
    """True if it has not ended."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def end_agent(agent: psutil.Process) -> None:
    """Ends an agent of Ray at once, with all that it has started, some of which would write on."""
    with suppress(psutil.NoSuchProcess):
        started = agent.children(recursive=True)
        agent.kill()
        for process in psutil.wait_procs([agent, *started], STOP_SECONDS)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
