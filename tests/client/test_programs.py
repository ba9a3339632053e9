from __future__ import annotations

import difflib
import hashlib
import time
from pathlib import Path

import pytest

from pie_control.errors import ApiError, ProgramRejected
from pie_control.programs.source_check import MAX_SOURCE_BYTES, check_program, check_source
from pie_control.programs.store import ProgramStore, kind_of
from pie_py.build.library import library_source
from pie_py.build.modules import read_modules, read_program
from pie_py.client.sync import Client
from pie_py.wire.modules import MOST_BYTES, MOST_MODULES, BadProgram, pack, unpack

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
    known = store.find(program.hash, "bob")  # who knows the hash may run it, and learns no name
    assert (known.hash, known.path, known.kind) == (program.hash, program.path, program.kind)
    assert (known.name, known.uploaded_by) == (program.hash[:12], "bob")
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


def test_what_is_removed_is_gone_with_its_bytes(store: ProgramStore, tmp_path: Path) -> None:
    former = store.put(TWO, "a", "python", "ann")
    first = store.put(ONE, "a", "python", "ann")
    theirs = store.put(ONE, "b", "python", "bob")
    store.remove(store.all_of("a", "ann"))
    assert store.list() == [theirs]
    assert not Path(former.path).exists()
    assert Path(first.path).exists(), "bob has it, too"
    assert store.all_of(theirs.hash, "ann") == []
    assert ProgramStore(tmp_path, 1000, time.time_ns).list() == [theirs]
    store.remove(store.all_of(theirs.hash[:8], "bob"))
    assert not store.has(theirs.hash)
    assert store.put(ONE, "a", "python", "ann") == store.find("a", "ann")


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
    monkeypatch.setattr(difflib, "get_close_matches", None)
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
    newer = store.put(TWO, "one", "python", "ann")
    for server in (store, other):  # what it has found before is no answer any more
        assert server.find("one", "ann") == newer
    other.remove(other.all_of("one", "ann"))
    for server in (store, other):
        with pytest.raises(ApiError, match="not-found"):
            server.find("one", "ann")


@pytest.mark.parametrize("damage", [b"no index" * 600, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_index_is_set_aside(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "index.sqlite3").write_bytes(damage)
    store = ProgramStore(tmp_path, 1000, time.time_ns)
    assert store.list() == []
    assert (tmp_path / "index.sqlite3.damaged").read_bytes() == damage
    assert store.put(ONE, "one", "python", "ann") == store.find("one", "ann")


@pytest.mark.parametrize("name", ["text_completion/../text_completion", "../inferlets/ask", "."])
def test_names_of_the_library_lead_out_of_no_folder(name: str) -> None:
    assert library_source("text_completion") is not None
    assert library_source(name) is None


def test_the_latest_upload_has_the_name_though_the_clock_jumps_back(tmp_path: Path) -> None:
    dates = iter([5, 4, 3, 2])
    store = ProgramStore(tmp_path, 1000, lambda: next(dates))
    for source in (ONE, TWO, ONE):
        assert store.put(source, "it", "python", "ann") == store.find("it", "ann")


def test_a_program_whose_bytes_are_gone_is_forgotten(tmp_path: Path, store: ProgramStore) -> None:
    program = store.put(ONE, "one", "python", "ann")
    Path(program.path).unlink()
    assert not store.has(program.hash)
    assert store.name_again(program.hash, "other", "ann") is None
    assert ProgramStore(tmp_path, 1000, time.time_ns).list() == []


def test_bad_uploads(store: ProgramStore) -> None:
    names = ("", "a/b", "..", "-x", "x" * 65, "𝄞" * 64, "a@b", "a\nb", "a ", "a\u202eb", "\ud800")
    for name in names:
        with pytest.raises(ApiError, match="cannot name a program"):
            store.put(ONE, name, "python", "ann")
    with pytest.raises(ApiError, match="1001 bytes; this server takes 1000"):
        store.put(bytes(1001), "large", "component", "ann")


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


PAIR = {"main.py": ONE, "helper.py": TWO}


def test_several_modules_are_one_string_of_bytes() -> None:
    assert pack({"main.py": ONE}) == ONE
    assert unpack(pack(PAIR)) == PAIR
    assert kind_of(pack(PAIR)[:4]) == "python"
    for main in ("my-program.py", "größe (1).py"):
        modules = {main: ONE, "größe.py": TWO, "a/b.py": b"", "a/__init__.py": ONE}
        mixed = {main: ONE, "a/__init__.py": ONE, "a/b.py": b"", "größe.py": TWO}
        assert pack(modules) == pack(mixed)
        assert list(unpack(pack(modules))) == [main, "a/__init__.py", "a/b.py", "größe.py"]


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        ({"main.py": ONE, "../x.py": ONE}, "cannot be a module's path"),
        ({"main.py": ONE, "/etc/x.py": ONE}, "cannot be a module's path"),
        ({"main.py": ONE, "x.txt": ONE}, "cannot be a module's path"),
        ({"main.py": ONE, "my module.py": ONE}, "cannot be a module's path"),
        ({"a\nb.py": ONE, "x.py": ONE}, "cannot be a module's path"),
        ({"main.py": ONE, f"{'x' * 300}.py": ONE}, "cannot be a module's path"),
        ({"a/main.py": ONE, "x.py": ONE}, "cannot be a module's path"),
        ({"main.py": ONE, "json.py": ONE}, "json is a module of the Python runtime"),
        ({"main.py": ONE, "inferlet/x.py": ONE}, "inferlet is a module of the Python runtime"),
        ({"main.py": ONE, "x.py": b"a\0b"}, r"x.py is not a Python source \(byte 1 is NUL\)"),
        ({"main.py": ONE, "x.py": b" " * MOST_BYTES}, f"{MOST_BYTES} at most"),
        ({f"m{i}.py": ONE for i in range(MOST_MODULES + 1)}, f"more than {MOST_MODULES} modules"),
    ],
)
def test_modules_that_make_no_program(modules: dict[str, bytes], problem: str) -> None:
    with pytest.raises(BadProgram, match=problem):
        pack(modules)


@pytest.mark.parametrize(
    "data",
    [
        b"\0modules",
        b"\0modules\0",
        b"\0modules\0main.py\0x = 1",
        b"\0modules\0main.py\0x = 1\0b.py",
        b"\0modules\0main.py\0x = 1\0c.py\0\0b.py\0",
        b"\0modules\0main.py\0x = 1\0b.py\0\0b.py\0",
        b"\0modules\0main.py\0x = 1\0main.py\0x = 2",
        b"\0modules2\0main.py\0\0b.py\0",
    ],
)
def test_only_what_pack_makes_is_a_program(data: bytes) -> None:
    with pytest.raises(BadProgram):
        unpack(data)
    with pytest.raises(ProgramRejected):
        check_program(data, "p")


def test_every_module_is_checked() -> None:
    check_program(pack(PAIR), "p")
    with pytest.raises(ProgramRejected, match=r"p/helper.py, line 2: "):
        check_program(pack(PAIR | {"helper.py": b"x = 1\ndef\n"}), "p")
    with pytest.raises(ProgramRejected, match=r"p/helper.py has .* 1048576 at most"):
        check_program(pack(PAIR | {"helper.py": b"#" * (MAX_SOURCE_BYTES + 1)}), "p")
    with pytest.raises(ProgramRejected, match=r"p.py, line 1: "):
        check_program(b"def\n", "p")


def _write(folder: Path, modules: dict[str, str]) -> Path:
    for path, source in modules.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source)
    return folder


def test_a_program_is_read_with_the_modules_that_it_imports(tmp_path: Path) -> None:
    folder = _write(
        tmp_path / "p",
        {
            "main.py": "import helper, json\nimport deep.inner.leaf\nasync def main(): ...",
            "helper.py": "def f():\n    from pack import part, value",
            "pack/__init__.py": "from .other import value",
            "pack/part.py": "from . import third\nfrom .. import beyond",
            "pack/other.py": "import main\nfrom broken import *\nvalue = 1",
            "pack/third.py": "",
            "deep/inner/leaf.py": "import numpy",
            "broken.py": "import unseen\ndef",
            "json.py": "",
            "unused.py": "",
            "unseen.py": "",
            "beyond.py": "",
            "data.json": "",
        },
    )
    assert list(unpack(read_program(folder))) == [
        *("main.py", "broken.py", "deep/inner/leaf.py", "helper.py"),
        *("pack/__init__.py", "pack/other.py", "pack/part.py", "pack/third.py"),
    ]
    assert read_program(folder / "main.py") == read_program(folder)
    assert read_program(folder / "unused.py") == b""
    before = read_program(folder)
    (folder / "pack/third.py").write_text("x = 1")
    assert read_program(folder) != before


def test_modules_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path / "p", {"main.py": "import helper"})
    outside = _write(tmp_path / "q", {"helper.py": "", "main.py": ""})
    (folder / "helper.py").symlink_to(outside / "helper.py")
    with pytest.raises(BadProgram, match=r"helper.py is a link to .*, which is outside of"):
        read_modules(folder)
    (folder / "helper.py").unlink()
    (folder / "helper").symlink_to(outside)
    (folder / "main.py").write_text("import helper.helper")
    with pytest.raises(BadProgram, match=r"is outside of"):
        read_modules(folder)
    (folder / "main.py").unlink()
    (folder / "main.py").symlink_to(outside / "main.py")
    with pytest.raises(BadProgram, match=r"main.py is a link"):
        read_modules(folder)
    with pytest.raises(BadProgram, match=r"has no main\.py"):
        read_modules(tmp_path)


@pytest.mark.usefixtures("nothing_made")
def test_what_takes_long_the_first_time_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = {"data_folder": str(tmp_path / "data"), "cache_folder": str(tmp_path / "cache")}
    with Client.local("pie-tiny", **folders) as client:
        assert [model["name"] for model in client.models()] == ["pie-tiny"]
    assert "builds its runtime, once" in caplog.text
