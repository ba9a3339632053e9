"""`walk`: how many functions and files one prompt and one steady token pass through.

The fewer, the sooner a newcomer has read all that a request does. Python functions of the product
count, in client, control process, worker and guest; comprehensions and lambdas do not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import anyio
import psutil

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.walk.hook.sitecustomize import ROLES
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client, Instance
from pie_py.config.model import ModelConfig

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAYERS = {
    "client": "pie_py/",
    "control process": "control/",
    "worker": "inference/",
    "guest": "sdk/python/",
}
BEGIN, END = 80, 140  # steps that count as steady
# A function belongs to a token if it runs nearly every step; some run for every second one.
LEAST = (END - BEGIN) * 5 // 6
PATIENCE_SECONDS = 20.0

Counts = Counter[tuple[str, int, str]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Functions and files that one prompt, and one steady token, pass through."""

    model: ModelConfig = options.model("pie-tiny")


def walk(settings: Settings, progress: Progress) -> list[Report]:
    """Counts all in one server."""
    progress.expect(3)
    with _marked_servers() as folder, bench_server(settings.model) as server:
        parent = psutil.Process(server.pid)
        pids = [p.pid for p in (parent, *parent.children(recursive=True)) if _counts_calls(p)]
        return anyio.run(_measure, server.endpoint, Meters(folder, pids), progress, backend="trio")


@dataclass
class Meters:
    """Counters of calls in the processes of a server, and in this one."""

    folder: Path
    pids: list[int]

    def start(self) -> None:
        """Counts from now on."""
        self._own: Counts = Counter()
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR1)
        sys.setprofile(self._note)

    async def stop(self) -> Counts:
        """The calls since `start`, in all processes."""
        sys.setprofile(None)
        found = self._own
        for pid in self.pids:
            file = self.folder / f"{pid}.json"
            os.kill(pid, signal.SIGUSR2)
            with anyio.fail_after(PATIENCE_SECONDS):
                while not file.exists():
                    await anyio.sleep(0.02)
            found += counts_in(file.read_text())
            file.unlink()
        return found

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            self._own[code.co_filename, code.co_firstlineno, code.co_name] += 1


async def _measure(endpoint: str, meters: Meters, progress: Progress) -> list[Report]:
    async with Client(endpoint) as client:
        await client.upload(HERE / "guest.py")
        for _ in range(2):  # what happens once only is no part of a prompt's way
            await _end_of(await client.launch("guest", ["prompt", "to warm up"]))
        meters.start()
        prompt = await _end_of(await client.launch("guest", ["prompt", "The capital of all is"]))
        prompt += await meters.stop()
        progress("one prompt")
        instance = await client.launch("guest", ["token", str(BEGIN), str(END)])
        await _until_pause(instance)
        meters.start()
        await instance.send("go on")
        await _until_pause(instance)
        token = await meters.stop()
        await instance.send("go on")
        token += await _end_of(instance)
        progress("one token")
        sent_on = await _sent_on(await client.launch("guest", ["text", str(END)]), meters)
        progress("one token that the server sends on")
    return [
        _report("One prompt", prompt, 1),
        _report("One token, read and sent by the program", token, LEAST),
        _report("One token, sent on by the server", sent_on, LEAST),
    ]


async def _sent_on(instance: Instance, meters: Meters) -> Counts:
    """Counts while `END - BEGIN` pieces of text arrive, of which the program sees none."""
    for _ in range(BEGIN):
        await instance.receive()
    meters.start()
    for _ in range(END - BEGIN):
        await instance.receive()
    counts = await meters.stop()
    await _end_of(instance)
    return counts


async def _until_pause(instance: Instance) -> None:
    async for message in instance:
        if message == "<pause>":
            return


async def _end_of(instance: Instance) -> Counts:
    """Waits for the end of an instance, and returns what it counted."""
    async for _ in instance:
        pass
    return counts_in(await instance.result())


def counts_in(text: str) -> Counts:
    """Reads counts that another process or a guest wrote."""
    return Counter({(file, line, name): count for file, line, name, count in json.loads(text)})


def _report(title: str, counts: Counts, least: int) -> Report:
    rows: list[list[str | int]] = []
    functions: set[tuple[str, int]] = set()
    for (file, line, name), count in counts.items():
        place = place_of(file)
        if place is not None and count >= least and not name.startswith("<"):
            functions.add((place, line))
    for layer, folder in LAYERS.items():
        inside = [place for place, _ in functions if place.startswith(folder)]
        rows.append([layer, len(inside), len(set(inside))])
    rows.append(["all", len(functions), len({place for place, _ in functions})])
    return Report(title, ["layer", "functions", "files"], rows)


def place_of(file: str) -> str | None:
    """The path of a product's file in the repository; None for any other file."""
    if "/inferlet/" in file and not file.startswith(str(ROOT)):  # as a guest sees the SDK
        return "sdk/python/inferlet/" + file.rpartition("/inferlet/")[2]
    if not file.startswith(str(ROOT)):
        return None
    place = str(Path(file).relative_to(ROOT))
    return place if place.startswith(tuple(LAYERS.values())) else None


def _counts_calls(process: psutil.Process) -> bool:
    return any(role in process.cmdline() for role in ROLES)


@contextmanager
def _marked_servers() -> Iterator[Path]:
    """Servers started meanwhile count their calls; yields the folder of their counts."""
    path = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="pie-walk-") as folder:
        os.environ["PIE_PY_WALK"] = folder
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "hook"), path]))
        try:
            yield Path(folder)
        finally:
            del os.environ["PIE_PY_WALK"]
            if path is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = path


BENCHMARK = Benchmark(Settings, walk)
