from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.wat_guests import LIMITS, guest

from pie_control.wasm.engine import Engine, EngineConfig, GuestLimits
from pie_control.wasm.guest import Guest
from pie_control.wasm.linker import HostFunction, Linker


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
