"""The run of a replay: the program's bytes in Wasmtime, the record in the server's place."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pie_control.replaying.player import Player
from pie_control.wasm import Engine, EngineConfig, Guest, GuestLimits, GuestTrap, Linker, Status
from pie_py.build.runtimes import RUNTIMES
from pie_py.wire.record import Record


@dataclass(frozen=True)
class Outcome:
    """How the program ended now: its result, or its error."""

    ok: bool
    text: str


def replay(player: Player, cache_folder: Path, say: Callable[[str], None]) -> Outcome:
    """Runs the program of a record to its end. The cache folder has compiled code and the Python
    runtime; `say` gets what takes time, and what may make the program depart.

    Raises:
        BuildError: the Python runtime cannot be built.
        ProgramRejected: the component cannot run here.
    """
    head = player.record.head
    limits = GuestLimits(head["memory"], head["table_elements"])
    compiled = cache_folder / "compiled"
    engine = Engine(
        EngineConfig(
            1,
            limits.memory_bytes,
            limits.table_elements,
            cache_folder=compiled,
            source_lines=True,
        )
    )
    linker = Linker(engine, player.functions())
    component = engine.load(_component(player.record, cache_folder, say))
    guest = Guest(linker, component, None, limits)
    guest.start([] if head["warm"] else head["args"])
    most_ns = int(head["cpu_seconds"] * 1e9)
    try:
        while guest.poll() is not Status.DONE:
            if guest.cpu_ns > most_ns:
                guest.close()
                text = f"limit-exceeded: {head['cpu_seconds']:g} s of CPU time are used up"
                return Outcome(False, text)
    except GuestTrap as trap:
        player.finish()
        return Outcome(False, f"trap: {trap.message}")
    player.finish()
    return Outcome(*guest.outcome)


def _component(record: Record, cache_folder: Path, say: Callable[[str], None]) -> bytes:
    runtime = RUNTIMES.get(record.head["kind"])
    if runtime is None:
        return base64.b64decode(record.head["component"])
    if record.head["runtime"] != runtime.runtime_file(cache_folder).name:
        say(
            f"note: pie-py {record.head['pie_py']} has made the record with another runtime: the"
            " program may depart from it for that"
        )
    path: Path = runtime.runtime_component(cache_folder, say)
    return path.read_bytes()
