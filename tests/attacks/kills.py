"""The worker, clients and the control process are killed at random moments, under load.

Clients upload programs, keep values in the store and generate text, without end. What they were
told is done must be there after each kill; who is not concerned must notice nothing; all must go
on.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from attacks import load
from support.servers import Server

from pie_py.testing.script import replaying

CLIENT, WORKER, CONTROL = "client", "worker", "control"
WEIGHTS = {CLIENT: 5, WORKER: 3, CONTROL: 2}
GO_ON_SECONDS = 120.0  # for all clients, after a kill
ORPHAN_SECONDS = 20.0  # for a worker whose control process is gone
Said = list[tuple[float, str]]


class Loader:
    """A client's process, and what it has written down."""

    def __init__(self, endpoint: str, folder: Path, name: str) -> None:
        self.name = name
        self._file = folder / f"{name}.log"
        self.process = subprocess.Popen(
            [sys.executable, load.__file__, endpoint, str(self._file), name]
        )

    def said(self) -> Said:
        """All its lines so far."""
        if not self._file.exists():
            return []
        lines = self._file.read_text().splitlines(keepends=True)
        whole = [line.rstrip("\n") for line in lines if line.endswith("\n")]  # it may write one now
        return [(float(line.split("\t")[0]), line.split("\t")[1]) for line in whole]

    def works_since(self, start: float) -> float | None:
        """When it had its second text after a time; None if it had fewer yet.

        The first may have been on its way before a kill.
        """
        right = [date for date, what in self.said() if what == "right" and date > start]
        return right[1] if len(right) > 1 else None


@dataclass
class Found:
    """What a run has seen."""

    kills: dict[str, int]
    programs: int = 0  # acknowledged
    values: int = 0
    texts: int = 0
    told: int = 0  # errors after kills that concern all
    slowest: float = 0.0  # seconds until all went on
    wrong: tuple[str, ...] = ()


class Killer:
    """Kills, has what is gone started again, and looks whether all is there."""

    def __init__(self, folder: Path, clients: int, seed: int, *, replays: bool) -> None:
        """Takes a short folder, how many clients work, and whether a script is the model."""
        self._folder = folder
        self._chance = random.Random(seed)
        model = replaying(folder) if replays else {"models": [{"source": "pie-tiny"}]}
        self._settings = {**model, "limits": {"detached_seconds": 5.0}, "spare_instances": 4}
        self._server = Server(folder, **self._settings)
        self._all: list[Loader] = []
        self._working = [self._start() for _ in range(clients)]
        self._allowed: list[tuple[float, float]] = []  # when errors concern all clients
        self._wrong: dict[str, None] = {}
        self.found = Found(dict.fromkeys(WEIGHTS, 0))

    def _start(self) -> Loader:
        made = Loader(self._server.endpoint, self._folder, f"c{len(self._all)}")
        self._all.append(made)
        return made

    def run(self, count: int) -> Found:
        """Kills so many times."""
        self._all_go_on(time.monotonic(), "at first")
        for number in range(count):
            time.sleep(self._chance.random() * 0.3)
            what = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            start = time.monotonic()
            getattr(self, f"_kill_{what}")()
            self.found.kills[what] += 1
            dead = time.monotonic()
            end = self._all_go_on(dead, f"after kill {number} ({what})")
            if what != CLIENT:
                self._allowed.append((start, end))
            self.found.slowest = max(self.found.slowest, end - start)
            if what == CONTROL or number == count - 1:
                self._check_what_is_kept()
        return self._finish()

    def _kill_client(self) -> None:
        one = self._chance.choice(self._working)
        one.process.kill()
        one.process.wait()
        self._working[self._working.index(one)] = self._start()

    def _worker(self) -> psutil.Process | None:
        """The inference worker's process; None while there is none."""
        module = self._settings.get("worker_module", "pie_inference")
        with suppress(psutil.Error):
            for child in psutil.Process(self._server.process.pid).children():
                if module in child.cmdline():
                    return child
        return None

    def _kill_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            worker.kill()
            psutil.wait_procs([worker], timeout=ORPHAN_SECONDS)

    def _kill_control(self) -> None:
        worker = self._worker()
        self._server.kill()
        if worker is not None:
            _, alive = psutil.wait_procs([worker], timeout=ORPHAN_SECONDS)
            if alive:
                self._wrong["a worker outlived its control process"] = None
        self._look_at_log()
        self._server = Server(self._folder, **self._settings)

    def _all_go_on(self, start: float, when: str) -> float:
        """Waits until every client has made a text; when the last one had it."""
        last, deadline = start, time.monotonic() + GO_ON_SECONDS
        for one in self._working:
            while (date := one.works_since(start)) is None:
                if time.monotonic() > deadline or self._server.ended:
                    raise AssertionError(f"{one.name} does not go on {when}: {one.said()[-3:]}")
                time.sleep(0.05)
            last = max(last, date)
        return last

    def _check_what_is_kept(self) -> None:
        """All that was acknowledged is there."""
        programs, values = set(), {}
        for one in self._all:
            for _, what in one.said():
                kind, _, rest = what.partition(" ")
                if kind == "program":
                    programs.add(rest)
                elif kind == "value":
                    key, value = rest.split(" ")
                    values[key] = value
        with self._server.client(patience=60.0) as client:
            here = {program["name"] for program in client.programs()}
            reader = client.launch("keeper", ["list", ""])
            try:
                kept = json.loads(reader.result(120))
            except TimeoutError:
                self._wrong[f"values are not listed: {client.inspect(reader.id)}"] = None
                return
        for name in sorted(programs - here)[:5]:
            self._wrong[f"program {name} was acknowledged and is lost"] = None
        for key, value in values.items():
            if kept.get(key) != value:
                self._wrong[f"value {key} was acknowledged and is {kept.get(key)!r}"] = None
        self.found.programs, self.found.values = len(programs), len(values)

    def _finish(self) -> Found:
        for one in self._working:
            one.process.kill()
            one.process.wait()
        self._server.stop()
        for one in self._all:
            for date, what in one.said():
                self.found.texts += what == "right"
                if what.startswith("wrong"):
                    self._wrong[f"{one.name}: {what[:200]}"] = None
                if what.startswith("told"):
                    self.found.told += 1
                    if not any(start <= date <= end for start, end in self._allowed):
                        self._wrong[f"{one.name} was told of what was not its: {what}"] = None
        self._look_at_log()
        self.found.wrong = tuple(self._wrong)
        return self.found

    def _look_at_log(self) -> None:
        if "Traceback" in self._server.log:
            self._wrong["the server's log has a traceback"] = None

    def close(self) -> None:
        """Ends what still runs."""
        for one in self._working:
            one.process.kill()
        self._server.kill()


def kill(count: int, clients: int, seed: int, *, replays: bool = True) -> Found:
    """A run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="pie-", ignore_cleanup_errors=True) as folder:
        killer = Killer(Path(folder), clients, seed, replays=replays)
        try:
            return killer.run(count)
        finally:
            killer.close()
