"""The process that keeps a machine's part of a cluster, started and found again by its folder."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from pie_cluster.machines.settings import ClusterProblem, write_private
from pie_py.config.processes import python_command

KEPT_LOGS = 3  # of former starts


def start_keeper(folder: Path) -> None:
    """Starts the process that keeps this machine's part; it outlives this one, once it can be
    found again.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.log"):  # what they say of a start is to be of this one
        for number in range(KEPT_LOGS, 0, -1):
            with suppress(FileNotFoundError):
                _older(old, number - 1).replace(_older(old, number))
    with (logs / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            python_command("-m", "pie_cluster.machines.machine", str(folder)),
            stdin=subprocess.PIPE,  # a byte tells it to begin; else this process has gone
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    told = {"pid": process.pid, "began": _birth(process.pid)}
    write_private(folder / "keeper.json", json.dumps(told))
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # one that has ended is told of by its log
        process.stdin.write(b"!")


def _older(log: Path, starts: int) -> Path:
    """A log of so many starts ago."""
    return log.with_name(f"{log.name}.{starts}") if starts else log


def _birth(pid: int) -> str:
    """When a process began: the machine's start, and ticks since then, for its clock may jump.
    Raises `OSError` if there is no such process.
    """
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # proc(5)
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"


def keeper(folder: Path) -> psutil.Process | None:
    """The process that keeps a folder's part, if it runs."""
    try:
        told = json.loads((folder / "keeper.json").read_text())
        if _birth(told["pid"]) != told["began"]:
            return None
        process = psutil.Process(told["pid"])
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
        return None


def check_keeper(folder: Path) -> None:
    """Whether it runs. Raises `ClusterProblem` if not, with the end of what it has said."""
    if keeper(folder) is None:
        log = (folder / "logs" / "keeper.log").read_text(errors="replace").strip()
        raise ClusterProblem(f"what keeps this machine has ended: {log[-500:]}")
