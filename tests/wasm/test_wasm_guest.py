"""Turns, suspension, traps, limits and lifetimes of guests."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support.rig import Rig
from support.wat_guests import LIMITS, OK, finish, guest, host, wait

from pie_control.api import session
from pie_control.errors import ApiError, ProgramRejected
from pie_control.instances.instance import Instance, InstanceState
from pie_control.instances.turns import Executor
from pie_control.wasm.engine import Engine, EngineConfig, GuestLimits
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import SUSPENDED, Linker
from pie_control.wasm.trap import MAX_LIST_ITEMS, GuestTrap
from pie_control.wasm.types import STRING, STRING_LIST, U8_LIST, U32, U32_LIST, Type
from pie_control.wasm.values import MOST_TEXT

Start = Callable[..., Guest]

# `run` returns what the host function `work` has written
WORK = "(call $work (i32.const 1024)) (i32.const 1024)"
FOREVER = "(loop $l (br $l)) unreachable"


def work(call: Any, **options: Any) -> Any:
    return host("work", call, returns=STRING, fails=True, **options)


def test_arguments_reach_run(start: Start) -> None:
    """`run` hands its own arguments to the host: they lie in memory as the host lists them."""
    seen: list[Any] = []
    functions = [host("take", lambda state, args: seen.append((state, args)), STRING_LIST)]
    made = start(
        functions, f"(call $take (local.get $args) (local.get $count)) {OK}", "a", "", "ü", state=7
    )
    assert finish(made) == (True, "")
    assert seen == [(7, ["a", "", "ü"])]


def test_outcomes(start: Start) -> None:
    assert finish(start([work(lambda state: "fine")], WORK)) == (True, "fine")

    def refuse(state: Any) -> str:
        raise ApiError("not-found", "there is no \0 such thing")

    assert finish(start([work(refuse)], WORK)) == (False, "not-found: there is no \0 such thing")


def test_an_unexpected_exception_is_an_internal_error(start: Start) -> None:
    def fail(state: Any) -> str:
        raise ZeroDivisionError("division by nothing")

    ok, text = finish(start([work(fail)], WORK))
    assert not ok
    assert text == "internal: test.work failed: ZeroDivisionError: division by nothing"


def test_an_exception_that_the_guest_cannot_receive_traps_it(start: Start) -> None:
    def fail(state: Any) -> None:
        raise ZeroDivisionError("nothing\0")

    with pytest.raises(GuestTrap, match=r"test\.work failed: ZeroDivisionError: nothing"):
        finish(start([host("work", fail)], f"(call $work) {OK}"))


def test_an_exception_whose_text_fails(start: Start) -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(state: Any) -> str:
        raise Bad

    with pytest.raises(GuestTrap, match=r"internal: test\.work failed"):
        finish(start([work(fail)], WORK))


def test_an_interrupt_passes_through_the_guest(start: Start) -> None:
    def interrupt(state: Any) -> str:
        raise KeyboardInterrupt

    made = start([work(interrupt)], WORK)
    with pytest.raises(KeyboardInterrupt):
        finish(made)
    made.close()


# Suspension


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("later", (True, "later")),
        (ApiError("cancelled", "too late"), (False, "cancelled: too late")),
        (12, (False, "internal: test.work failed: AttributeError: ")),
    ],
    ids=["value", "error", "wrong type"],
)
def test_a_suspended_guest_waits_for_its_answer(
    start: Start, answer: Any, outcome: tuple[bool, str]
) -> None:
    made = start([work(lambda state: SUSPENDED, suspends=True)], WORK)
    with pytest.raises(RuntimeError, match="does not wait"):
        made.resume("early")
    for _ in range(3):
        wait(made)
    spent = made.cpu_ns
    wait(made)
    assert made.cpu_ns == spent  # it does not run
    made.resume(answer)
    ok, text = finish(made)
    assert ok is outcome[0]
    assert text.startswith(outcome[1])


def test_a_function_that_may_suspend_can_answer_at_once(start: Start) -> None:
    assert finish(start([work(lambda state: "now", suspends=True)], WORK)) == (True, "now")

    def refuse(state: Any) -> str:
        raise ApiError("busy", "no")

    assert finish(start([work(refuse, suspends=True)], WORK)) == (False, "busy: no")


def test_answers_that_the_guest_cannot_receive_trap_it(start: Start) -> None:
    function = host("work", lambda state: SUSPENDED, returns=U32, suspends=True)
    made = start([function], f"(drop (call $work)) {OK}")
    wait(made)
    made.resume("text")
    with pytest.raises(GuestTrap, match=r"test\.work failed"):
        finish(made)
    at_once = host("work", lambda state: "text", returns=U32, suspends=True)
    with pytest.raises(GuestTrap, match=r"test\.work failed"):
        finish(start([at_once], f"(drop (call $work)) {OK}"))


def test_many_suspensions_in_turn(engine: Engine) -> None:
    """Guests that wait alternately each get their own answers."""

    def call(state: list[int], number: int) -> Any:
        state.append(number)
        return SUSPENDED

    functions = [host("work", call, U32, returns=U32, suspends=True)]
    body = f"""(loop $l (local.set $i (call $work (local.get $i)))
                 (br_if $l (i32.lt_u (local.get $i) (i32.const 100)))) {OK}"""
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, body))
    states: list[list[int]] = [[] for _ in range(20)]
    live: list[Guest | None] = []
    for state in states:
        one = Guest(linker, component, state, LIMITS)
        one.start([])
        live.append(one)
    while any(made is not None for made in live):
        for step, made in enumerate(live):
            if made is None:
                continue
            status = made.poll()
            if status is Status.DONE:
                live[step] = None
            elif status is Status.WAITING:
                made.resume(made.state[-1] + 1 + step)
    for step, state in enumerate(states):
        assert state == list(range(0, 100, 1 + step))


# Slices


def test_a_spinning_guest_is_sliced_and_killed(start: Start) -> None:
    spinner = start([work(lambda state: "")], FOREVER)
    other = start([work(lambda state: "in between")], WORK)
    for _ in range(5):
        assert spinner.poll() is Status.RUNNING
    assert finish(other) == (True, "in between")
    assert spinner.cpu_ns > 0
    spinner.close()
    with pytest.raises(RuntimeError):
        spinner.poll()


def test_every_turn_gets_its_own_slice(start: Start) -> None:
    """A guest's turn does not end early because others have used up theirs."""
    spinner = start([work(lambda state: "")], FOREVER)
    others = [start([work(lambda state: "x")], WORK) for _ in range(20)]
    whole = 0
    for other in others:
        assert spinner.poll() is Status.RUNNING
        whole += other.poll() is Status.DONE
        other.close()
    assert whole > 10  # all of them, unless the machine itself was busy
    spinner.close()


def test_what_guests_say_first_comes_before_what_others_do_next(engine: Engine) -> None:
    rig = Rig()
    executor = Executor(rig.registry.end, 1.0, 1.0)
    done: list[str] = []

    def say(state: Instance) -> None:
        done.append("says")
        session.send(state, "hello")

    functions = [host("say", say), work(lambda state: done.append("works") or "")]  # type: ignore[func-returns-value]
    linker = Linker(engine, functions)
    go_on = "(func $go_on (call $work (i32.const 1024)))"
    program = guest(functions, f"(call $say) (call $go_on) (call $say) {WORK}", extra=go_on)
    component = engine.load(program)
    instances = [rig.launch() for _ in range(3)]
    for instance in instances:
        instance.guest = Guest(linker, component, instance, LIMITS)
        instance.guest.start([])
        executor.add(instance)
    executor.turn()
    assert done == ["says"] * 3
    assert not executor.caught_up, "the next plan waits for them"
    executor.turn()
    assert done == ["says"] * 3 + ["works", "says", "works"] * 3
    assert {instance.state for instance in instances} == {InstanceState.FINISHED}


def test_spinning_at_instantiation_is_sliced(engine: Engine) -> None:
    functions = [work(lambda state: "")]
    spin = "(func $spin (loop $l (br $l))) (start $spin)"
    linker = Linker(engine, functions)
    made = Guest(linker, engine.load(guest(functions, WORK, extra=spin)), None, LIMITS)
    made.start(["argument"])
    for _ in range(3):
        assert made.poll() is Status.RUNNING
    made.close()


# Traps and limits


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("unreachable", "unreachable", r"the program aborted .*\(in <wasm function \d>\)"),
        ("(call $deeper) unreachable", "stack-overflow", "endless recursion"),
        ("(call $sinking) unreachable", "stack-overflow", "endless recursion"),
        ("(drop (i32.load (i32.const -8))) (i32.const 0)", "out-of-bounds", "out of bounds"),
        ("(i32.const -8)", "out-of-bounds", "out of bounds"),
        ("(call_indirect (i32.const 9)) (i32.const 0)", "table", "table"),
        ("(i32.div_u (i32.const 1) (i32.const 0))", "other", "integer divide by zero"),
        ("(call $handle_alloc_error) unreachable", "memory", "the limit is 64 MiB"),
    ],
)
def test_traps_are_named(start: Start, body: str, kind: str, text: str) -> None:
    extra = """(table 1 funcref)
        (func $handle_alloc_error unreachable)
        (func $deeper (call $deeper) (call $deeper))
        (global $stack (mut i32) (i32.const 640))
        (func $sinking
            (global.set $stack (i32.sub (global.get $stack) (i32.const 16)))
            (i32.store (global.get $stack) (i32.const 1))
            (call $sinking) (call $sinking))"""
    made = start([work(lambda state: "")], body, extra=extra)
    with pytest.raises(GuestTrap, match=text) as trapped:
        finish(made)
    assert trapped.value.kind == kind
    made.close()
    assert finish(start([work(lambda state: "alive")], WORK)) == (True, "alive")


def test_asking_for_10_gigabytes_stops_at_the_limit(start: Start) -> None:
    """Growth is refused at the limit, without the server's memory growing by as much."""
    pages: list[int] = []
    functions = [host("pages", lambda state, count: pages.append(count), U32)]
    body = f"""(loop $l (if (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)) (then
                 (local.set $i (i32.add (local.get $i) (i32.const 16)))
                 (br_if $l (i32.lt_u (local.get $i) (i32.const 163840))))))
               (call $pages (memory.size)) {OK}"""
    limits = GuestLimits(memory_bytes=32 << 20, table_elements=10)
    growth: list[int] = []
    for asked in (512, 163840):  # what the limit allows, and 10 GB
        before = psutil.Process().memory_info().rss
        made = start(functions, body.replace("163840", str(asked)), limits=limits)
        assert finish(made)[0]
        growth.append(psutil.Process().memory_info().rss - before)
        made.close()
    assert pages == [500, 500]  # in steps of 16 from the 4 it starts with
    assert growth[1] <= max(growth[0], 0) + limits.memory_bytes


def test_a_program_that_starts_over_the_limit(start: Start) -> None:
    made = start(
        [work(lambda state: "")],
        WORK,
        pages=100,
        limits=GuestLimits(memory_bytes=1 << 20, table_elements=10),
    )
    with pytest.raises(GuestTrap, match="the limit is 1 MiB") as trapped:
        finish(made)
    assert trapped.value.kind == "memory"


def test_table_limit(start: Start) -> None:
    grown: list[int] = []
    functions = [host("size", lambda state, count: grown.append(count), U32)]
    body = f"""(drop (table.grow $t (ref.null func) (i32.const 500)))
               (drop (table.grow $t (ref.null func) (i32.const 600)))
               (call $size (table.size $t)) {OK}"""
    assert finish(start(functions, body, extra="(table $t 0 funcref)"))[0]
    assert grown == [500]


@pytest.mark.parametrize(
    ("kind", "most"), [(U8_LIST, MAX_LIST_ITEMS), (STRING, MOST_TEXT)], ids=["bytes", "text"]
)
def test_one_call_cannot_flood_the_host(start: Start, kind: Type, most: int) -> None:
    sizes: list[int] = []
    functions = [host("take", lambda state, data: sizes.append(len(data)), kind)]

    def passing(count: int) -> Guest:
        body = f"(call $take (i32.const 0) (i32.const {count})) {OK}"
        return start(functions, body, pages=900)

    assert finish(passing(most))[0]
    assert sizes == [most]
    what = "at most 2796202 list elements" if kind is U8_LIST else "limit-exceeded: a text of"
    with pytest.raises(GuestTrap, match=what):
        finish(passing(most + 1))


def test_many_views_of_one_text_cannot_flood_the_host(start: Start) -> None:
    """A hundred thousand strings of 64 KiB, all at the same place."""
    functions = [host("take", lambda state, texts: None, STRING_LIST)]
    body = f"""(local.set $i (i32.const 65536))
        (loop $l (i32.store offset=4 (local.get $i) (i32.const 65536))
          (local.set $i (i32.add (local.get $i) (i32.const 8)))
          (br_if $l (i32.lt_u (local.get $i) (i32.const 865536))))
        (call $take (i32.const 65536) (i32.const 100000)) {OK}"""
    with pytest.raises(GuestTrap) as trapped:
        finish(start(functions, body, pages=20))
    assert trapped.value.kind == "too-much-data"


# Lifetimes


def test_close_in_every_state(start: Start) -> None:
    functions = [work(lambda state: SUSPENDED, suspends=True)]
    fresh, waiting, done = (start(functions, WORK) for _ in range(3))
    wait(waiting)
    wait(done)
    done.resume("")
    finish(done)
    answered = start(functions, WORK)
    wait(answered)
    answered.resume("never read")
    for made in (fresh, waiting, done, answered):
        made.close()
        made.close()


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("answer", ["value", "error", "suspended"])
def test_close_from_within_its_own_host_call(start: Start, suspends: bool, answer: str) -> None:
    calls: list[int] = []

    def call(state: list[Guest]) -> Any:
        calls.append(1)
        state[0].close()
        if answer == "error":
            raise ApiError("busy", "")
        return SUSPENDED if suspends and answer == "suspended" else ""

    state: list[Guest] = []
    body = "(loop $l (call $work (i32.const 1024)) (br $l)) unreachable"
    made = start([work(call, suspends=suspends)], body, state=state)
    state.append(made)
    while made.poll() is Status.RUNNING:
        assert not calls
    with pytest.raises(RuntimeError):
        made.poll()
    assert len(calls) == 1


def test_close_of_others_from_within_a_host_call(engine: Engine) -> None:
    """A guest's call may end guests that wait, spin, or have not begun."""
    functions = [
        work(lambda state: SUSPENDED, suspends=True),
        host("spin", lambda state: None),
        host("kill", lambda state: [other.close() for other in state][:0] and None),
    ]
    linker = Linker(engine, functions)
    waits = engine.load(guest(functions, WORK))
    spins = engine.load(guest(functions, FOREVER))
    kills = engine.load(guest(functions, f"(call $kill) (call $kill) {OK}"))
    others = [Guest(linker, part, None, LIMITS) for part in (waits, spins, waits)]
    for other in others:
        other.start([])
    wait(others[0])
    assert others[1].poll() is Status.RUNNING
    killer = Guest(linker, kills, others, LIMITS)
    killer.start([])
    assert finish(killer) == (True, "")
    for other in others:
        with pytest.raises(RuntimeError):
            other.poll()


def test_a_host_function_cannot_poll(start: Start) -> None:
    other = start([work(lambda state: "")], WORK)

    def call(state: Any) -> str:
        other.poll()
        return ""

    ok, text = finish(start([work(call)], WORK))
    assert not ok
    assert "cannot poll" in text
    other.close()


def test_a_dropped_guest_frees_its_place(engine: Engine) -> None:
    functions = [work(lambda state: SUSPENDED, suspends=True)]
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, WORK))
    for _ in range(2):
        live = [Guest(linker, component, None, LIMITS) for _ in range(600)]
        for made in live:
            made.start([])
            wait(made)
        del live, made
        gc.collect()


def test_no_room_is_a_clear_error() -> None:
    engine = Engine(EngineConfig(max_instances=40, memory_bytes=64 << 20))
    functions = [work(lambda state: SUSPENDED, suspends=True)]
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, WORK))
    live = [Guest(linker, component, None, LIMITS) for _ in range(41)]
    for made in live:
        made.start([])
    for made in live[:40]:
        wait(made)
    with pytest.raises(GuestTrap, match="limit of 40"):
        live[-1].poll()
    for made in live:
        made.close()


def test_900_guests_and_4500_kills_leak_nothing(engine: Engine) -> None:
    functions = [
        host("give", lambda state: list(range(100)), returns=U32_LIST),
        work(lambda state: SUSPENDED, suspends=True),
    ]
    body = f"(call $give (i32.const 2048)) (i32.store (i32.const 200000) (i32.const 1)) {WORK}"
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, body))

    process = psutil.Process()

    def generation() -> int:
        """Starts and ends guests; the memory of the process while all are alive."""
        live = [Guest(linker, component, None, LIMITS) for _ in range(900)]
        for made in live:
            made.start(["argument"] * 10)
        for made in live:
            wait(made)
        held = int(process.memory_info().rss)
        for number, made in enumerate(live):
            if number % 3 == 0:
                made.resume("done")
                finish(made)
            made.close()
        return held

    before = process.memory_info().rss
    generation()
    after_one = process.memory_info().rss
    of_one = generation() - before
    for _ in range(4):
        generation()
    # One that leaked would leave its memory each time: five times what one takes.
    assert process.memory_info().rss < after_one + of_one // 2


def test_a_guest_checks_its_component(engine: Engine) -> None:
    """A component that another linker admitted is checked again: types decide memory accesses."""
    numbers = [host("work", lambda state, number: None, U32)]
    texts = [host("work", lambda state, text: None, STRING)]
    Linker(engine, numbers)
    component = engine.load(guest(numbers, f"(call $work (i32.const 1)) {OK}"))
    with pytest.raises(ProgramRejected, match=r"test@0\.1\.0\.work as func\(u32\), which here is"):
        Guest(Linker(engine, texts), component, None, LIMITS)


def test_cpu_time_is_that_of_the_turns(start: Start) -> None:
    def held_up(state: Any) -> Any:
        time.sleep(0.05)  # as on a machine that is busy with others
        return SUSPENDED

    made = start([work(held_up, suspends=True)], WORK)
    assert made.cpu_ns == 0
    wait(made)
    spent = made.cpu_ns
    assert 0 < spent < 0.05e9
    assert made.cpu_ns == spent  # no more while it waits
    made.resume("")
    finish(made)
    assert made.cpu_ns > spent


@pytest.mark.parametrize("how", ["python", "sort", "json"])
def test_host_functions_may_recurse_on_the_stack_of_a_deep_guest(start: Start, how: str) -> None:
    """Host functions run on the fiber: Python's own recursion limit must come before its end."""

    def through_sort(depth: int) -> Any:
        return sorted([depth], key=lambda _: through_sort(depth + 1))

    def through_python(depth: int) -> Any:
        return through_python(depth + 1)

    recurse: Callable[[], object] = {
        "python": lambda: through_python(0),
        "sort": lambda: through_sort(0),
        "json": lambda: json.loads("[" * 100_000),
    }[how]

    def call(state: Any) -> str:
        with pytest.raises(RecursionError):
            recurse()
        return "survived"

    deep = """(func $deep (param i32)
        (if (local.get 0)
          (then (call $deep (i32.sub (local.get 0) (i32.const 1))))
          (else (call $work (i32.const 1024))))
        (drop (i32.load (i32.const 0))))"""
    body = "(call $deep (i32.const 40000)) (i32.const 1024)"
    assert finish(start([work(call)], body, extra=deep)) == (True, "survived")
    with pytest.raises(GuestTrap) as trapped:  # it was nearly at the end of its own stack
        finish(start([work(call)], body.replace("40000", "200000"), extra=deep))
    assert trapped.value.kind == "stack-overflow"
