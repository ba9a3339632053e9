"""Pages that all guests of a component use are there before they run."""

from __future__ import annotations

import mmap
import resource

import pytest
from support.wat_guests import LIMITS, OK, finish, guest_text
from wasmtime import wat2wasm

from pie_control.wasm.engine import Component, Engine
from pie_control.wasm.guest import Guest
from pie_control.wasm.linker import Linker
from pie_control.wasm.written_pages import AROUND, LOOKED_AT, WrittenPages
from pie_py.build.image import memory_instance

MEMORY = 1 << 20
FIRST = 1 << 17
PAGES = (MEMORY - FIRST) // mmap.PAGESIZE
# Adds 1 to a byte of each page, which is 0 before: no guest sees what another has written.
WRITE = f"""
    (local.set $i (i32.const {FIRST}))
    (loop $next
      (if (i32.load8_u (local.get $i)) (then unreachable))
      (i32.store8 (local.get $i) (i32.const 1))
      (local.set $i (i32.add (local.get $i) (i32.const {mmap.PAGESIZE})))
      (br_if $next (i32.lt_u (local.get $i) (i32.const {MEMORY}))))
    {OK}"""


# Reads a byte of each page of the image, and writes to one.
IMAGE = f'(data (i32.const {FIRST}) "{"x" * (MEMORY - FIRST)}")'
READ = f"""
    (i32.store8 (i32.const {FIRST}) (i32.const 1))
    (local.set $i (i32.const {FIRST + mmap.PAGESIZE}))
    (loop $next
      (if (i32.ne (i32.load8_u (local.get $i)) (i32.const {ord("x")})) (then unreachable))
      (local.set $i (i32.add (local.get $i) (i32.const {mmap.PAGESIZE})))
      (br_if $next (i32.lt_u (local.get $i) (i32.const {MEMORY}))))
    {OK}"""


def test_other_files_are_no_components() -> None:
    with pytest.raises(ValueError, match="not WebAssembly"):
        memory_instance(b"\0asn\x0d\0\1\0")


def _learning(
    engine: Engine, body: str = WRITE, blanks: str = "", image: str = ""
) -> tuple[Linker, Component]:
    text = guest_text([], body + blanks, pages=MEMORY >> 16)
    heap = "(global $heap (export"  # in the module that has the memory
    data = bytes(wat2wasm(text.replace(heap, image + heap)))
    linker, component = Linker(engine), engine.load(data)
    component.written = WrittenPages(memory_instance(data))
    return linker, component


def _run(linker: Linker, component: Component, *, ahead: bool) -> int:
    """Runs a guest; page faults of its turns."""
    made = Guest(linker, component, None, LIMITS)
    made.start([])
    if ahead:
        made.instantiate()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    assert finish(made) == (True, "")
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_later_guests_copy_none_of_the_pages_in_their_turns(engine: Engine) -> None:
    linker, component = _learning(engine)
    first = [_run(linker, component, ahead=True) for _ in range(LOOKED_AT)]
    assert min(first) >= PAGES
    assert component.written is not None
    assert component.written.count >= PAGES
    later = [_run(linker, component, ahead=True) for _ in range(4)]
    assert max(later) < PAGES / 4


def test_later_guests_map_none_of_the_pages_in_their_turns(engine: Engine) -> None:
    linker, component = _learning(engine, body=READ, image=IMAGE)
    first = [_run(linker, component, ahead=True) for _ in range(LOOKED_AT)]
    assert min(first) >= PAGES // AROUND
    later = [_run(linker, component, ahead=True) for _ in range(4)]
    assert max(later) < PAGES // AROUND / 4


def test_guests_that_instantiate_themselves_get_them_unchanged(engine: Engine) -> None:
    linker, component = _learning(engine, blanks="(nop)")
    for _ in range(LOOKED_AT):
        _run(linker, component, ahead=False)
    for _ in range(3):
        _run(linker, component, ahead=False)
    assert component.written is not None
    assert component.written.count >= PAGES


def test_what_few_guests_write_is_not_copied(engine: Engine) -> None:
    linker, component = _learning(engine, body=f"(if (local.get $count) (then {WRITE} drop)) {OK}")
    for number in range(LOOKED_AT):
        made = Guest(linker, component, None, LIMITS)
        made.start(["write"] if number < LOOKED_AT // 2 else [])
        assert finish(made) == (True, "")
    assert component.written is not None
    assert component.written.count < PAGES / 4


def test_the_pages_of_a_guest_that_never_ran_are_not_left_to_the_next(engine: Engine) -> None:
    linker, component = _learning(engine, blanks="(nop) (nop)")
    for _ in range(LOOKED_AT + 2):
        _run(linker, component, ahead=True)
    for _ in range(3):
        unused = Guest(linker, component, None, LIMITS)
        unused.instantiate()
        unused.close()
        assert _run(linker, component, ahead=True) < PAGES / 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(core module $m (memory 1))", "0 core instances"),
        (
            "(core module $m (memory 1)) (core instance (instantiate $m))"
            " (core instance (instantiate $m))",
            "2 core instances",
        ),
        ("(component (core module (memory 1)))", "within"),
    ],
)
def test_a_component_without_one_memory_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        memory_instance(bytes(wat2wasm(f"(component {text})")))


def test_the_instance_with_the_memory_is_found_behind_others() -> None:
    text = """(component
      (core module $other (func (export "f")))
      (core module $mine (import "a" "f" (func)) (memory 1))
      (core instance $first (instantiate $other))
      (core instance $parts (export "f" (func $first "f")))
      (core instance (instantiate $mine (with "a" (instance $parts)))))"""
    assert memory_instance(bytes(wat2wasm(text))) == 1
