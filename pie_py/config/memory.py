"""Memory of this process: what it may have, what it gives back, and collections of its garbage.

It may have the machine's, or less within control groups: a container's limit may be set on its own
group or on any group around it, by version 1 or 2 of the kernel's interface; the smallest one
counts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import psutil

from pie_py.config.platform import PROC, c_function

_UNLIMITED = 1 << 60  # version 1 says so by a number near 2**63
_PROC = PROC / "self"


class _Version(NamedTuple):
    """The names of a group's files."""

    kind: str  # of the file system
    limit: str
    used: str
    reclaimable: str  # in memory.stat: of files, and given back when it is needed


_VERSIONS = (
    _Version("cgroup2", "memory.max", "memory.current", "inactive_file"),
    _Version("cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def total_memory() -> int:
    """Bytes that this process and its like may take at most."""
    return min(int(psutil.virtual_memory().total), *(limit for limit, _ in group_limits()))


def available_memory() -> int:
    """Bytes that are free for it now."""
    left = (limit - used for limit, used in group_limits())
    return max(0, min(int(psutil.virtual_memory().available), *left))


def trim() -> None:
    """Gives back what the C library holds unused. Blocking: some milliseconds a gigabyte."""
    if (malloc_trim := c_function("malloc_trim")) is not None:  # glibc has it
        malloc_trim(0)


def group_limits(proc: Path = _PROC) -> list[tuple[int, int]]:
    """Limit and use in bytes of each group around this process with a limit; else `(2**60, 0)`."""
    found = [(_UNLIMITED, 0)]
    for version, folder in _groups(proc):
        with suppress(OSError, ValueError):
            limit = (folder / version.limit).read_text().strip()
            if limit == "max" or int(limit) >= _UNLIMITED:
                continue
            used = int((folder / version.used).read_text())
            with suppress(OSError):
                lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
                used -= int(dict(lines).get(version.reclaimable, 0))
            found.append((int(limit), max(0, used)))
    return found


def _groups(proc: Path) -> Iterator[tuple[_Version, Path]]:
    """The group of this process, and those around it, as far as they are mounted."""
    try:
        mounts, groups = (_lines(proc / name) for name in ("mountinfo", "cgroup"))
    except OSError:  # no Linux
        return
    lines = [line.split(":", 2) for line in groups]
    for mount in mounts:
        fields, _, described = mount.partition(" - ")
        root, place = fields.split(" ")[3:5]
        kind, _, options = described.split(" ", 2)
        for version in _VERSIONS:
            if version.kind != kind or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            wanted = "" if kind == "cgroup2" else "memory"
            for _, controllers, path in lines:
                if wanted in controllers.split(","):
                    inside = PurePosixPath("/")
                    with suppress(ValueError):  # of another name space: what is mounted is ours
                        inside = PurePosixPath(path).relative_to(root)
                    top = Path(place)
                    parts = () if ".." in inside.parts else inside.parts
                    here = top.joinpath(*(part for part in parts if part != "/"))
                    around = (here, *here.parents)
                    yield from ((version, each) for each in around if each.is_relative_to(top))


def _lines(file: Path) -> list[str]:
    """Of what the kernel writes: users' folders, of any bytes but the end of a line, are in it."""
    return [line for line in file.read_text(errors="surrogateescape").split("\n") if line]


# Objects made before a collection of the youngest, such collections before one of those that it
# left, and such before one of all that came since the last: some 100 000 objects, which took 6 ms.
THRESHOLDS = 5_000, 2, 4


def bound_collections() -> None:
    """Makes garbage collections of this process short, however much it keeps.

    Python 3.11's collector looks at all objects now and then, which takes 0.4 s a million, and
    nothing else goes on meanwhile. From now on it looks at what has come since the last time. What
    is still there then is kept apart: reference counts free it, and no later collection looks at
    it. Lost are circles that become garbage later; in control and worker processes what lives long
    is in none, or takes them apart at its end (3 000 launches, or 5 500 requests, left 9 objects
    in such).
    """
    gc.freeze()
    if _after not in gc.callbacks:
        gc.callbacks.append(_after)
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


def _after(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
