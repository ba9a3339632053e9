"""The count of stores that ended guests have left, which decides whether there is room for
others.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
from support.wat_guests import HOLD, LIMITS, WAITS, guest, wait

from pie_control.wasm import symbols
from pie_control.wasm.engine import Component, Engine, EngineConfig, Reaper
from pie_control.wasm.guest import Guest
from pie_control.wasm.linker import Linker


def _waiting(linker: Linker, component: Component) -> Guest:
    made = Guest(linker, component, None, LIMITS)
    made.start([])
    wait(made)
    return made


def test_a_store_at_the_address_of_one_just_deleted_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has deleted a store and not said so yet; the next one lies where it was.

    Where a store lies is the C library's choice, so that none is made here.
    """
    deleted, goes_on = threading.Event(), threading.Event()

    def delete(store: int) -> None:
        deleted.set()
        goes_on.wait(60)

    monkeypatch.setattr(symbols, "store_delete_aside", delete)
    reaper, place = Reaper(), 0x1000
    reaper.bury(place, None)
    assert deleted.wait(60)
    reaper.bury(place, None)
    assert reaper.waiting == 2
    goes_on.set()
    reaper.finish()
    assert reaper.waiting == 0
    reaper.stop()


def test_an_engine_ends_once_its_guests_are_gone() -> None:
    """It holds terabytes of address space."""
    engine = Engine(EngineConfig(max_instances=40))
    linker, component = Linker(engine, [HOLD]), engine.load(guest([HOLD], WAITS))
    _waiting(linker, component).close()
    reaper, engine_gone = engine.reaper, weakref.ref(engine)
    reaper.finish()
    del engine, linker, component
    gc.collect()
    end = time.monotonic() + 10
    while engine_gone() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert engine_gone() is None
