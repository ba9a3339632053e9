from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from pie_control.errors import ApiError, ProgramRejected
from pie_control.programs import store as programs
from pie_control.programs.source_check import MAX_SOURCE_BYTES, check_source
from pie_control.programs.store import ProgramStore, kind_of

ONE, TWO = b"x = 1\n", b"x = 2\n"


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    return ProgramStore(tmp_path, 1000, time.time_ns)


def test_programs_are_found_by_name_and_hash(store: ProgramStore) -> None:
    program = store.put(ONE, "one", "python", "ann")
    assert program.hash == hashlib.sha256(ONE).hexdigest()
    assert Path(program.path).read_bytes() == ONE
    assert store.find("one", "ann") == program
    assert store.find(program.hash[:8], "ann") == program
    assert store.find(program.hash, "bob") == program  # who knows the hash knows the program
    for name in ("one", program.hash[:8], program.hash[:4]):
        with pytest.raises(ApiError, match="not-found"):
            store.find(name, "bob")
    assert store.source(program) == ("one.py", "x = 1\n")
    assert store.has(program.hash)
    assert not store.has("0" * 64)


def test_the_latest_upload_has_the_name(store: ProgramStore) -> None:
    first = store.put(ONE, "it", "python", "ann")
    second = store.put(TWO, "it", "python", "ann")
    theirs = store.put(ONE, "it", "python", "bob")
    assert store.find("it", "ann") == second
    assert store.find("it", "bob") == theirs
    assert store.find(first.hash, "ann").hash == first.hash
    assert [p.hash for p in store.list("ann")] == [first.hash, second.hash]
    assert len(store.list()) == 3


def test_one_program_may_have_two_names(store: ProgramStore) -> None:
    store.put(ONE, "a", "python", "ann")
    store.put(ONE, "b", "python", "ann")
    assert store.find("a", "ann").hash == store.find("b", "ann").hash
    assert store.find("a", "ann").name == "a"


def test_near_names_are_told(store: ProgramStore) -> None:
    with pytest.raises(ApiError, match="none is uploaded yet"):
        store.find("x", "ann")
    store.put(ONE, "text_completion", "python", "ann")
    with pytest.raises(ApiError, match="did you mean text_completion"):
        store.find("text-completion", "ann")
    with pytest.raises(ApiError, match="there are text_completion"):
        store.find("zzz", "ann")


def test_a_name_longer_than_any_is_not_compared(
    store: ProgramStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(ONE, "x" * 64, "python", "ann")
    assert store.find("x" * 64, "ann").hash == hashlib.sha256(ONE).hexdigest()
    monkeypatch.setattr(programs.difflib, "get_close_matches", None)
    with pytest.raises(ApiError) as error:
        store.find("x" * 2_000_000, "ann")
    assert error.value.code == "not-found"
    assert len(error.value.message) < 200


def test_programs_survive_a_restart_and_are_shared(tmp_path: Path, store: ProgramStore) -> None:
    program = store.put(ONE, "one", "python", "ann")
    other = ProgramStore(tmp_path, 1000, time.time_ns)
    assert other.find("one", "ann") == program
    later = other.put(TWO, "two", "python", "ann")
    assert store.find("two", "ann") == later
    assert {p.name for p in store.list()} == {"one", "two"}


def test_a_damaged_index_is_set_aside(tmp_path: Path, store: ProgramStore) -> None:
    store.put(ONE, "one", "python", "ann")
    for damage in ("{", "[]", json.dumps({"format": 99}), json.dumps({"format": 1})):
        (tmp_path / "index.json").write_text(damage)
        again = ProgramStore(tmp_path, 1000, time.time_ns)
        assert again.list() == []
        assert (tmp_path / "index.damaged").read_text() == damage
        assert again.put(ONE, "one", "python", "ann") == again.find("one", "ann")


def test_a_program_whose_bytes_are_gone_is_forgotten(tmp_path: Path, store: ProgramStore) -> None:
    program = store.put(ONE, "one", "python", "ann")
    Path(program.path).unlink()
    assert not store.has(program.hash)
    assert store.name_again(program.hash, "other", "ann") is None
    assert ProgramStore(tmp_path, 1000, time.time_ns).list() == []


def test_bad_uploads(store: ProgramStore) -> None:
    for name in ("", "a/b", "..", "-x", "x" * 65, "naïve"):
        with pytest.raises(ApiError, match="cannot name a program"):
            store.put(ONE, name, "python", "ann")
    with pytest.raises(ApiError, match="1001 bytes; this server takes 1000"):
        store.put(bytes(1001), "large", "component", "ann")


def test_kinds() -> None:
    assert kind_of(b"\0asm\x0d\0\x01\0") == "component"
    assert kind_of(b"import os") == "python"


def test_sources_are_checked() -> None:
    check_source(b"async def main(args): return 'x'\n", "good.py")
    check_source(b"x = 1\n" * 5000, "long.py")
    cases = {
        b"x = (\n": r"bad.py, line 1: '\(' was never closed",
        b"x = 1\n" * 5000 + b"def\n": "bad.py, line 5001: ",
        b"x\0": r"neither Wasm nor a Python source in UTF-8 \(byte 1\)",
        b"\xff\xfe": r"neither Wasm nor a Python source in UTF-8 \(byte 0\)",
        b"(" * 5000: "bad.py.*too many nested",
        b"x" * (MAX_SOURCE_BYTES + 1): "1048576 at most",
        b"-" * 300_000 + b"1": "bad.py",
        b"x = " + b"[" * 90 + b"]" * 90 + b"\n" + b"a." * 200_000 + b"b": "bad.py",
    }
    for source, message in cases.items():
        with pytest.raises(ProgramRejected, match=message):
            check_source(source, "bad.py")
