"""`pie-py backup` and `restore`: what a restored folder has is what the folder had."""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pie_control.programs.store import ProgramStore
from pie_py.cli import main
from pie_py.cli.backup import MANIFEST
from pie_py.config.keys import KeyStore

SOURCE = b"async def main(args):\n    return 'kept'\n"


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a program, a key, and a database of which much is still in its log."""
    folder = tmp_path / "data"
    KeyStore(folder).add("ann")
    programs = ProgramStore(folder / "programs", 1 << 20, lambda: 1)
    programs.put(SOURCE, "agent", "python", "ann")
    return folder


def test_a_folder_comes_back_while_another_writes(folder: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite3")) as sql:
        sql.execute("PRAGMA journal_mode=WAL")
        sql.execute("CREATE TABLE kept (value)")
        sql.execute("INSERT INTO kept VALUES (7)")
        sql.commit()
        sql.execute("INSERT INTO kept VALUES (8)")  # of a transaction that is not over
        made = invoke("backup", tmp_path / "b.tar.gz", "--data-folder", folder)
    assert made.exit_code == 0, made.output
    with tarfile.open(tmp_path / "b.tar.gz") as packed:
        assert made.output.startswith(f"{len(packed.getnames()) - 1} files of")  # and their list
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0
    again = invoke("backup", tmp_path / "b.tar.gz", "--data-folder", folder)
    assert "exists already" in again.stderr

    restored = tmp_path / "restored"
    assert invoke("restore", tmp_path / "b.tar.gz", "--data-folder", restored).exit_code == 0
    with closing(sqlite3.connect(restored / "store.sqlite3")) as sql:
        assert sql.execute("SELECT value FROM kept").fetchall() == [(7,)]
    assert KeyStore(restored).users() == KeyStore(folder).users()
    assert KeyStore(restored).server_pair() == KeyStore(folder).server_pair()
    (program,) = ProgramStore(restored / "programs", 1 << 20, lambda: 1).list("ann")
    assert program.name == "agent"
    assert (restored / "keys/server.json").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "data", "restored"]

    again = invoke("restore", tmp_path / "b.tar.gz", "--data-folder", restored)
    assert "is not empty" in again.stderr


def refused(file: Path) -> None:
    """Nothing is restored of what is no whole backup, which is told in a line."""
    restored = file.with_name("restored")
    told = invoke("restore", file, "--data-folder", restored)
    assert told.exit_code == 1
    [line] = told.stderr.splitlines()
    assert "is no whole backup" in line
    assert "/." not in line  # a folder that is gone
    assert not restored.exists()


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.9])
def test_of_a_damaged_archive_nothing_is_restored(
    folder: Path, tmp_path: Path, kept: float
) -> None:
    file = tmp_path / "b.tar.gz"
    invoke("backup", file, "--data-folder", folder)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    refused(file)


def test_an_archive_with_a_wrong_byte_restores_all_or_nothing(folder: Path, tmp_path: Path) -> None:
    file, restored = tmp_path / "b.tar.gz", tmp_path / "restored"
    numbers = "\n".join(str(n * n) for n in range(4000))
    (folder / "numbers").write_text(numbers)
    invoke("backup", file, "--data-folder", folder)
    whole, taken = file.read_bytes(), 0
    for at in range(0, len(whole), len(whole) // 400):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        if invoke("restore", file, "--data-folder", restored).exit_code:
            refused(file)
        else:  # a byte of the archive's own name, or of what fills it up
            assert (restored / "numbers").read_text() == numbers
            shutil.rmtree(restored)
            taken += 1
    assert taken < 100


def test_a_list_of_files_that_is_none_restores_nothing(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("[]")
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / MANIFEST, MANIFEST)
    refused(tmp_path / "b.tar.gz")


def test_a_database_that_is_none_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "store.sqlite3").write_bytes(b"no database" * 400)
    told = invoke("backup", tmp_path / "b.tar.gz", "--data-folder", folder)
    assert told.exit_code == 1
    [line] = told.stderr.splitlines()
    assert f"{folder / 'store.sqlite3'} cannot be read" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("change", ["another content", "left out", "one more", "a lost link"])
def test_an_archive_with_other_files_than_it_says_restores_nothing(
    folder: Path, tmp_path: Path, change: str
) -> None:
    file, changed = tmp_path / "b.tar.gz", tmp_path / "changed"
    invoke("backup", file, "--data-folder", folder)
    with tarfile.open(file) as archive:
        archive.extractall(changed, filter="data")
    key = changed / "keys/users/ann.pub"
    if change == "left out":
        key.unlink()
    elif change != "a lost link":
        key.with_name("ann.pub" if change == "another content" else "bob.pub").write_text("x" * 40)
    with tarfile.open(file, "w:gz") as archive:
        archive.add(changed, "")
        if change == "a lost link":
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.LNKTYPE, "nowhere"
            archive.addfile(link)
    refused(file)
