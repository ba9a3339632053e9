"""`pie-py backup`, `restore`: a data folder as one file, while a server may run on it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from pie_py import __version__
from pie_py.cli.connect import FILE, NEW_FILE, fail
from pie_py.cli.console import say
from pie_py.cli.users import in_data_folder

MANIFEST = "manifest.json"  # of each file its SHA-256; the last one of the archive
_DATABASE = ".sqlite3"
_ASIDE = ("-wal", "-shm", "-journal")  # of a database: what its copy has within


@click.command("backup")
@click.argument("archive", type=NEW_FILE)
@in_data_folder
def backup(archive: Path, folder: Path) -> None:
    """Write all that the data folder has into ARCHIVE, a new .tar.gz: programs, the store, keys.

    A server may run meanwhile. ARCHIVE has secrets, as the folder has: only you may read it.
    """
    if not folder.is_dir():
        fail(f"there is no data folder {folder}: name it with --data-folder or --config")
    if archive.exists():
        fail(f"{archive} exists already: name another file")
    with tempfile.TemporaryDirectory(
        dir=archive.absolute().parent, prefix=f".{archive.name}."
    ) as beside:
        made = Path(beside, "archive")
        made.touch(mode=0o600)
        count = _pack(folder, made, Path(beside))
        made.replace(archive)
    say(f"{count} files of {folder} are in {archive}; `pie-py restore {archive}` brings them back")


@click.command("restore")
@click.argument("archive", type=FILE)
@in_data_folder
def restore(archive: Path, folder: Path) -> None:
    """Bring back a data folder of a `pie-py backup`, into one that is empty or not there yet.

    All of ARCHIVE is checked before anything appears.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        fail(f"{folder} is not empty: move it aside, or name another one with --data-folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
        made = Path(beside, "data")
        made.mkdir(mode=0o700)
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(made, filter="data")
            path = made / MANIFEST
            match json.loads(path.read_bytes()) if path.is_file() else None:
                case {"files": dict(hashes)}:
                    path.unlink()
                case _:
                    raise ValueError("it has no list of its files")
            if set(_names(made)) != hashes.keys():
                raise ValueError("files are missing")
            for name, wanted in hashes.items():
                with (made / name).open("rb") as data:
                    if hashlib.file_digest(data, "sha256").hexdigest() != wanted:
                        raise ValueError(f"{name} is damaged")
            count = len(hashes)
        except (OSError, EOFError, ValueError, KeyError, tarfile.TarError, zlib.error) as error:
            why = str(error).partition("\n")[0].rstrip(":")  # tarfile lists what it has tried
            fail(f"{archive} is no whole backup, so nothing was restored: {why}")
        if folder.exists():
            folder.rmdir()
        made.replace(folder)
    say(f"{count} files are in {folder}")


def _pack(folder: Path, made: Path, beside: Path) -> int:
    """Writes the archive; how many files it has."""
    hashes = {}
    with tarfile.open(made, "w:gz", compresslevel=1) as archive:
        for name in _names(folder):
            copy = beside / "copy"
            try:
                _copy(folder / name, copy)
            except FileNotFoundError:  # it went meanwhile
                continue
            with copy.open("rb") as data:
                hashes[name] = hashlib.file_digest(data, "sha256").hexdigest()
            archive.add(copy, name, recursive=False)
        text = json.dumps({"pie_py": __version__, "files": hashes}).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size, info.mode = len(text), 0o600
        archive.addfile(info, io.BytesIO(text))
    return len(hashes)


def _names(folder: Path) -> Iterator[str]:
    """Of all files: databases first, as what they name is there before they name it."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    kept = [path for path in found if not path.name.endswith(_ASIDE)]
    for path in sorted(kept, key=lambda path: (path.suffix != _DATABASE, path)):
        yield str(path.relative_to(folder))


def _copy(source: Path, copy: Path) -> None:
    """A copy that is whole whatever a server writes; with the source's mode."""
    copy.unlink(missing_ok=True)
    if source.suffix == _DATABASE:
        try:
            with (
                closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as sql,
                closing(sqlite3.connect(copy)) as own,
            ):
                sql.backup(own)
        except sqlite3.DatabaseError as error:
            fail(f"{source} cannot be read, so nothing was written: {error}; move it away")
        os.chmod(copy, source.stat().st_mode & 0o777)
    else:
        shutil.copy2(source, copy)
