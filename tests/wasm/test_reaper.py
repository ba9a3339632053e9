"""The count of stores that ended guests have left, which decides whether there is room for others."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterator

import pytest
from conftest import LIMITS
from wat_guests import guest, host

from pie_control.wasm import (
    STRING,
    SUSPENDED,
    Component,
    Engine,
    EngineConfig,
    Guest,
    Linker,
    Status,
)

HOLD = host("hold", lambda state: SUSPENDED, returns=STRING, fails=True, suspends=True)
# Writes to 48 MiB, which take milliseconds to give back, then waits.
BODY = """
    (drop (memory.grow (i32.const 768)))
    (memory.fill (i32.const 65536) (i32.const 1) (i32.const 50331648))
    (call $hold (i32.const 1024)) (i32.const 1024)
"""


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """This thread keeps the interpreter until it sleeps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)
    yield
    sys.setswitchinterval(before)


def _written(linker: Linker, component: Component) -> Guest:
    made = Guest(linker, component, None, LIMITS)
    made.start([])
    while made.poll() is not Status.WAITING:
        pass
    return made


@pytest.mark.usefixtures("undisturbed")
def test_a_store_at_the_address_of_one_just_deleted_counts() -> None:
    """The thread has deleted a store and not said so yet; the next one lies where it was."""
    engine = Engine(EngineConfig(max_instances=40, memory_bytes=64 << 20))
    linker, component = Linker(engine, [HOLD]), engine.load(guest([HOLD], BODY))
    for _ in range(40):
        first = _written(linker, component)
        (address,) = engine.stores
        first.close()
        time.sleep(0.0005)  # the thread begins; then it may not go on before the next sleep
        busy = time.perf_counter() + 0.03
        while time.perf_counter() < busy:
            pass
        others: list[Guest] = []
        while address not in engine.stores and len(others) < 1000:
            others.append(Guest(linker, component, None, LIMITS))
        if engine.reaper.waiting == 1 and address in engine.stores:
            break
        for other in others:
            other.close()
        engine.reaper.finish()
    else:
        pytest.fail("no store came to lie where one had just been deleted")
    others.pop().close()
    assert engine.reaper.waiting == 2


def test_an_engine_ends_once_its_guests_are_gone() -> None:
    """It holds terabytes of address space."""
    engine = Engine(EngineConfig(max_instances=40, memory_bytes=64 << 20))
    linker, component = Linker(engine, [HOLD]), engine.load(guest([HOLD], BODY))
    _written(linker, component).close()
    reaper, engine_gone = engine.reaper, weakref.ref(engine)
    reaper.finish()
    del engine, linker, component
    gc.collect()
    end = time.monotonic() + 10
    while engine_gone() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert engine_gone() is None
