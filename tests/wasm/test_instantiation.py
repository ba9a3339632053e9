"""Guests that a thread instantiates before a launch needs them."""

from __future__ import annotations

import time

from support.wat_guests import LIMITS, finish, guest, host

from pie_control.programs.guests import Instantiation
from pie_control.wasm.engine import Engine
from pie_control.wasm.guest import Guest
from pie_control.wasm.linker import Linker
from pie_control.wasm.types import STRING

WORK = "(call $work (i32.const 1024)) (i32.const 1024)"


def _wait_for(instantiation: Instantiation, count: int) -> None:
    while len(instantiation) < count:
        time.sleep(0.0005)


def test_guests_of_the_offered_component_are_ready_and_like_others(engine: Engine) -> None:
    functions = [host("work", lambda state: state, returns=STRING, fails=True)]
    linker = Linker(engine, functions)  # first: a component is held to the engine's last linker
    offered, other = (engine.load(guest(functions, WORK + blanks)) for blanks in ("", " (nop)"))
    before = len(engine.stores)
    instantiation = Instantiation(linker, LIMITS, 2)
    instantiation.offer(offered)
    _wait_for(instantiation, 2)
    made = [instantiation.guest(offered, f"guest {number}") for number in range(5)]
    made.append(instantiation.guest(other, "of another component"))
    for one in made:
        one.start([])
    assert [finish(one) for one in made] == [
        *((True, f"guest {number}") for number in range(5)),
        (True, "of another component"),
    ]
    _wait_for(instantiation, 2)
    instantiation.stop()
    assert len(instantiation) == 0
    assert len(engine.stores) == before


def test_a_guest_that_cannot_be_instantiated_tells_its_first_turn(engine: Engine) -> None:
    functions = [host("work", lambda state: state, returns=STRING, fails=True)]
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, WORK))
    small = type(LIMITS)(memory_bytes=0, table_elements=0)
    ends = []
    for ahead in (False, True):
        made = Guest(linker, component, "", small)
        if ahead:
            made.instantiate()
        made.start([])
        try:
            ends.append(str(finish(made)))
        except Exception as trap:
            ends.append(f"{type(trap).__name__}: {trap}")
    assert ends[0] == ends[1]
    assert ends[0].startswith("GuestTrap")


def test_guests_whose_turn_is_far_are_instantiated_beside_the_others(engine: Engine) -> None:
    functions = [host("work", lambda state: state, returns=STRING, fails=True)]
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, WORK))
    before = len(engine.stores)
    instantiation = Instantiation(linker, LIMITS, 1)
    instantiation.offer(component)
    made = [instantiation.guest(component, f"guest {number}") for number in range(12)]
    for one in made:
        one.start([])
    assert finish(made[0]) == (True, "guest 0")  # whoever has instantiated it
    made[1].close()
    made[-1].close()
    _wait_for(instantiation, 1)  # the thread turns to these when no launch waits any more
    outcomes = [finish(one) for one in made[2:-1]]
    assert outcomes == [(True, f"guest {number}") for number in range(2, 11)]
    instantiation.stop()
    assert len(engine.stores) == before
