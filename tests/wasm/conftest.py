from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.wat_guests import guest

from pie_control.wasm import Engine, EngineConfig, Guest, GuestLimits, HostFunction, Linker, Status

LIMITS = GuestLimits(memory_bytes=64 << 20, table_elements=1000)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """One engine for the session: each reserves terabytes of address space."""
    return Engine(EngineConfig(max_instances=1000, memory_bytes=64 << 20, slice_ms=5.0))


@pytest.fixture
def start(engine: Engine) -> Callable[..., Guest]:
    """Starts a guest from host functions and the text of `run`."""

    def start(
        functions: Sequence[HostFunction],
        body: str,
        *args: str,
        state: Any = None,
        limits: GuestLimits = LIMITS,
        **options: Any,
    ) -> Guest:
        linker = Linker(engine, functions)
        made = Guest(linker, engine.load(guest(functions, body, **options)), state, limits)
        made.start(list(args))
        return made

    return start


def finish(guest: Guest) -> tuple[bool, str]:
    """Polls a guest that never waits to its end."""
    while (status := guest.poll()) is not Status.DONE:
        assert status is Status.RUNNING
    return guest.outcome


def wait(guest: Guest) -> None:
    """Polls a guest until a host function has suspended it."""
    while (status := guest.poll()) is not Status.WAITING:
        assert status is Status.RUNNING
