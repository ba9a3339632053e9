"""Loading: what is refused and how, and the cache of compiled code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.wat_guests import LIMITS, OK, finish, guest, host
from wasmtime import wat2wasm

from pie_control.errors import ProgramRejected
from pie_control.wasm.cache import Cache, is_in_memory, load_in_large_pages
from pie_control.wasm.engine import Engine, EngineConfig, fingerprint, portable_code
from pie_control.wasm.guest import Guest
from pie_control.wasm.inspection import CONTRACT_VERSION
from pie_control.wasm.linker import HostFunction, Linker
from pie_control.wasm.types import STRING, U32, Enum

HERE = Path(__file__).parent
FUNCTIONS = [host("work", lambda state, number: number, U32, returns=U32)]
BODY = f"(drop (call $work (i32.const 1))) {OK}"
SMALL = EngineConfig(max_instances=2, memory_bytes=1 << 20)


@pytest.fixture
def fussy(engine: Engine) -> Engine:
    Linker(engine, FUNCTIONS)
    return engine


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a WebAssembly file: it is empty"),
        (b"import inferlet\n", "text that starts with 'import inferlet'.* ends in .py"),
        (("#: " + "ü" * 40).encode(), "text that starts with '#: üü.* ends in .py"),
        (b"(component)", "WebAssembly text; send the binary form"),
        (b"\x7fELF\xff\x01", "starts with the bytes 7f 45 4c 46 ff 01"),
        (bytes(wat2wasm("(module)")), "core WebAssembly module, not a component.*pie-py build"),
        (b"\0asm\x07\0\0\0", "unknown version"),
        (b"\0asm", "unknown version .cut off."),
        (bytes(wat2wasm("(component)"))[:8] + b"\xff\xff\xff", "damaged"),
        (bytes(wat2wasm("(component)")), "exports no function `run"),
    ],
)
def test_what_is_no_program_is_refused(fussy: Engine, data: bytes, text: str) -> None:
    with pytest.raises(ProgramRejected, match=text):
        fussy.load(data)


def test_a_cut_off_component_is_refused(fussy: Engine) -> None:
    whole = guest(FUNCTIONS, BODY)
    for size in range(8, len(whole) // 2, 41):  # what comes last are names only
        with pytest.raises(ProgramRejected):
            fussy.load(whole[:size])


def test_foreign_imports_are_named(fussy: Engine) -> None:
    text = """(component
        (import "wasi:clocks/wall-clock@0.2.0" (instance))
        (import "env" (func)))"""
    with pytest.raises(ProgramRejected) as refused:
        fussy.load(bytes(wat2wasm(text)))
    assert "imports env, wasi:clocks/wall-clock@0.2.0;" in str(refused.value)
    assert "WASI are not offered" in str(refused.value)


def test_another_contract_version_is_refused_naming_both(fussy: Engine) -> None:
    with pytest.raises(ProgramRejected, match=r"version 0\.2\.0 of .* speaks 0\.1\.0"):
        fussy.load(guest(FUNCTIONS, BODY, version="0.2.0"))


def test_unknown_parts_of_the_contract_are_named(fussy: Engine) -> None:
    unknown = [
        HostFunction("test", "later", (), None, False, lambda state: None),
        HostFunction("future", "more", (), None, False, lambda state: None),
        HostFunction("test", "work", (STRING,), None, True, lambda state: None),
    ]
    with pytest.raises(ProgramRejected) as refused:
        fussy.load(guest(unknown, OK))
    text = str(refused.value)
    assert "pie:inferlet/test@0.1.0.later, which this server does not have" in text
    assert "the interface pie:inferlet/future@0.1.0, which" in text
    assert "work as func(string) -> result<_, string>, which here is func(u32) -> u32" in text


def test_other_cases_of_an_enum_are_refused(engine: Engine) -> None:
    ours = [host("paint", lambda state, color: None, Enum(("red", "green")))]
    theirs = [host("paint", lambda state, color: None, Enum(("red", "blue")))]
    Linker(engine, ours)
    with pytest.raises(ProgramRejected, match=r"red, blue.*red, green"):
        engine.load(guest(theirs, OK))
    engine.load(guest(ours, OK))


def test_a_run_of_another_type_is_refused(fussy: Engine) -> None:
    text = """(component (core module $m (func (export "run")))
        (core instance $i (instantiate $m))
        (func (export "run") (canon lift (core func $i "run"))))"""
    with pytest.raises(ProgramRejected, match=r"its export `run` is func\(\); it must be"):
        fussy.load(bytes(wat2wasm(text)))
    with pytest.raises(ProgramRejected, match="exports no function `run"):
        fussy.load(guest(FUNCTIONS, BODY, run=False))


def test_more_memory_than_the_server_gives_is_refused_at_loading(fussy: Engine) -> None:
    with pytest.raises(ProgramRejected, match="needs more than an instance may have here"):
        fussy.load(guest(FUNCTIONS, BODY, pages=2000))


def test_the_contract_version_is_that_of_the_wit_package() -> None:
    wit = Path(__file__).parents[2] / "sdk" / "wit" / "inferlet.wit"
    assert f"package pie:inferlet@{CONTRACT_VERSION};" in wit.read_text()


# The cache


def code_of(folder: Path) -> Path:
    (code,) = folder.glob("*.cwasm")
    return code


def replace_code(folder: Path, data: bytes) -> None:
    """By another file: an engine may still have the one that is there in its memory."""
    code = code_of(folder)
    code.unlink()
    code.write_bytes(data)


def load_and_run(folder: Path, *, baseline: bool = False) -> bool:
    """Loads and runs the program in a fresh engine; whether it was compiled."""
    engine = Engine(replace(SMALL, cache_folder=folder, baseline=baseline))
    linker = Linker(engine, FUNCTIONS)
    before = {path: path.stat().st_ino for path in folder.glob("*.cwasm")}
    made = Guest(linker, engine.load(guest(FUNCTIONS, BODY)), None, LIMITS)
    made.start([])
    assert finish(made) == (True, "")
    return before != {path: path.stat().st_ino for path in folder.glob("*.cwasm")}


def test_compiled_code_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert load_and_run(folder)
    assert not load_and_run(folder)


def test_code_is_in_memory_before_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(b"x" * (4 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_in_memory(file.fileno()):
            pytest.skip("this file system keeps its files in memory")
        load_in_large_pages(path)
        assert is_in_memory(file.fileno())


def test_damaged_code_is_compiled_again(tmp_path: Path) -> None:
    load_and_run(tmp_path)
    (index,) = tmp_path.glob("*.json")
    for where in (0, 100, -100, -1):
        data = bytearray(code_of(tmp_path).read_bytes())
        data[where] ^= 0xFF
        replace_code(tmp_path, bytes(data))
        assert load_and_run(tmp_path), where
        assert not load_and_run(tmp_path), where
    for keep in (0, 1, 4096):
        replace_code(tmp_path, code_of(tmp_path).read_bytes()[:keep])
        assert load_and_run(tmp_path), keep
    for text in ("", "{", "{}", "[]"):
        index.write_text(text)
        assert load_and_run(tmp_path), text
        assert not load_and_run(tmp_path), text
    code_of(tmp_path).unlink()
    assert load_and_run(tmp_path)


def test_an_index_names_no_file_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    load_and_run(folder)
    (index,) = folder.glob("*.json")
    (tmp_path / "x").write_bytes(code_of(folder).read_bytes())
    index.write_text(json.dumps({**json.loads(index.read_text()), "file": "../x"}))
    assert load_and_run(folder)


def test_copied_code_is_checked_and_used(tmp_path: Path) -> None:
    """Another file with the same content: its hash is checked once, then its identity is known."""
    load_and_run(tmp_path)
    replace_code(tmp_path, code_of(tmp_path).read_bytes())
    (index,) = tmp_path.glob("*.json")
    stale = json.loads(index.read_text())["stamp"]
    assert not load_and_run(tmp_path)
    assert json.loads(index.read_text())["stamp"] != stale


def test_code_of_another_wasmtime_is_compiled_again(tmp_path: Path) -> None:
    """Whatever the index says, Wasmtime refuses what another version or configuration made."""
    program = guest(FUNCTIONS, BODY)
    config = EngineConfig(max_instances=2, memory_bytes=1 << 20, cache_folder=tmp_path)
    Cache(tmp_path, fingerprint(config)).store(program, b"\x7fELF of some other version")
    assert load_and_run(tmp_path)
    assert not load_and_run(tmp_path)


def test_code_is_compiled_once_whatever_the_limits_are() -> None:
    """CPython takes 15 seconds of the CPU."""
    data = guest(FUNCTIONS, BODY)
    other = EngineConfig(max_instances=9, memory_bytes=2 << 20, table_elements=5000, slice_ms=1.0)
    made = {bytes(Engine(config).load(data).compiled.serialize()) for config in (SMALL, other)}
    assert len(made) == 1
    assert fingerprint(SMALL) == fingerprint(other)
    with_lines = replace(SMALL, source_lines=True)
    assert bytes(Engine(with_lines).load(data).compiled.serialize()) not in made
    assert fingerprint(with_lines) != fingerprint(SMALL)


def test_baseline_code_runs_and_is_kept_apart(tmp_path: Path) -> None:
    for baseline in (False, True):
        assert load_and_run(tmp_path, baseline=baseline)
    for baseline in (False, True):
        assert not load_and_run(tmp_path, baseline=baseline)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code that a wheel has of the program."""
    name, code = portable_code(guest(FUNCTIONS, BODY))
    (tmp_path / name).write_bytes(code)
    monkeypatch.setattr("pie_control.wasm.cache.shipped_folder", lambda name: tmp_path)
    return tmp_path / name


def test_shipped_code_is_not_compiled_again(tmp_path: Path, shipped: Path) -> None:
    assert not load_and_run(tmp_path / "cache")
    assert load_and_run(tmp_path / "cache", baseline=True), "that is of optimized code alone"


def test_shipped_code_for_another_cpu_is_compiled(tmp_path: Path, shipped: Path) -> None:
    shipped.write_bytes(b"\x7fELF for some other CPU")
    assert load_and_run(tmp_path / "cache")
    assert not load_and_run(tmp_path / "cache")


def test_kept_code_of_a_program_that_is_too_large_is_refused(tmp_path: Path) -> None:
    large = guest(FUNCTIONS, BODY, pages=20)
    Engine(EngineConfig(max_instances=2, memory_bytes=2 << 20, cache_folder=tmp_path)).load(large)
    for _ in range(2):
        with pytest.raises(ProgramRejected, match="needs more than an instance may have here"):
            Engine(replace(SMALL, cache_folder=tmp_path)).load(large)


def test_a_folder_that_cannot_be_written_does_not_stop_loading(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not load_and_run(tmp_path / "file" / "cache"), "it ran, and nothing was kept"
    assert (tmp_path / "file").read_text() == ""


def test_many_threads_compile_the_same_program(tmp_path: Path) -> None:
    engine = Engine(EngineConfig(max_instances=2, memory_bytes=1 << 20, cache_folder=tmp_path))
    Linker(engine, FUNCTIONS)
    errors: list[BaseException] = []

    def load() -> None:
        try:
            for _ in range(5):
                engine.load(guest(FUNCTIONS, BODY))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not load_and_run(tmp_path)
    assert not list(tmp_path.glob(".*"))  # no temporary file is left


def test_leaving_the_process_with_live_guests_is_clean(tmp_path: Path) -> None:
    """Guests that wait, spin or have not begun when the interpreter ends do not crash it."""
    script = tmp_path / "leave.py"
    script.write_text(
        f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
        "from conftest import LIMITS\n"
        "from support.wat_guests import guest, host\n"
        "from pie_control.wasm.engine import Engine, EngineConfig\n"
        "from pie_control.wasm.guest import Guest\n"
        "from pie_control.wasm.linker import SUSPENDED, Linker\n"
        "functions = [host('work', lambda state: SUSPENDED, suspends=True)]\n"
        "engine = Engine(EngineConfig(max_instances=9, memory_bytes=64 << 20))\n"
        "linker = Linker(engine, functions)\n"
        "live = []\n"
        "for body in ('(call $work) unreachable', '(loop $l (br $l)) unreachable') * 2:\n"
        "    live.append(Guest(linker, engine.load(guest(functions, body)), None, LIMITS))\n"
        "    live[-1].start(['argument'])\n"
        "for guest in live[:3]:\n"
        "    print(guest.poll().name)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["WAITING", "RUNNING", "WAITING"]
