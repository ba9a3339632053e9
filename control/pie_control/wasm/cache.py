"""Compiled code on disk."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from mmap import mmap
from pathlib import Path

import structlog

from pie_py.config.shipped_files import shipped_folder
from pie_py.config.whole_files import write_whole

log = structlog.get_logger("pie.wasm")

_PART = 1 << 20  # bytes that are read at once
_PROBED = 128 << 10  # bytes of which one says whether all are in memory


class Cache:
    """Compiled components, by program and by what else their code depends on.

    An entry is an index, `PROGRAM-FINGERPRINT.json`, and the code,
    `PROGRAM-FINGERPRINT-HASH.cwasm`, which Wasmtime maps into memory as it is. Wasmtime trusts what
    it maps, so an entry is used only if its content has the hash that the index names. Hashing
    takes far longer than mapping (30 ms for the 50 MB of CPython, against 3 ms), so the index also
    remembers the file's identity, size and times at the last full check: while the file system
    reports no write to the file, the check is not repeated.

    Files are written under another name and renamed: writers cannot disturb each other, and code
    that a process has mapped stays as it was.

    A wheel has code of the Python runtime beside that (`engine.portable_code`). It is not hashed:
    who can write there can write this package.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def find(self, digest: str) -> Path | None:
        """The file with the compiled code of a program (`digest_of`), if there is a sound one."""
        return self._kept(digest) or self._shipped(digest)

    def _shipped(self, digest: str) -> Path | None:
        path = shipped_folder("runtimes") / code_name(digest, self._fingerprint)
        try:
            load_in_large_pages(path)
        except OSError:  # there is none, mostly
            return None
        return path

    def _kept(self, digest: str) -> Path | None:
        index = self._index_of(digest)
        try:
            entry = json.loads(index.read_text())
            path = self._folder / str(entry["file"])
            if path.parent != self._folder:
                raise ValueError("names a file elsewhere")
            stamp = _stamp(path)
            if entry["stamp"] != stamp:
                if _hash_file(path) != entry["sha256"]:
                    raise ValueError("does not have its recorded hash")
                write_whole(index, json.dumps({**entry, "stamp": stamp}).encode())
            load_in_large_pages(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("damaged cache entry; compiling again", entry=index.name, reason=str(error))
            return None
        return path

    def store(self, program: bytes, code: bytes | bytearray) -> None:
        """Keeps compiled code. Raises OSError if it cannot be written."""
        index = self._index_of(digest_of(program))
        digest = hashlib.sha256(code).hexdigest()
        path = self._folder / f"{index.stem}-{digest[:16]}.cwasm"
        write_whole(path, code)
        entry = {"file": path.name, "sha256": digest, "stamp": _stamp(path)}
        write_whole(index, json.dumps(entry).encode())
        for other in self._folder.glob(f"{index.stem}-*.cwasm"):
            if other != path:  # of an entry that was damaged
                other.unlink(missing_ok=True)

    def _index_of(self, digest: str) -> Path:
        return self._folder / f"{digest}-{self._fingerprint}.json"


def code_name(digest: str, fingerprint: str) -> str:
    """The file name of shipped code."""
    return f"{digest}-{fingerprint}.cwasm"


def load_in_large_pages(path: Path) -> None:
    """Reads a file that is about to be mapped, unless the system has it in memory.

    What is read in one go lies in memory in pages of up to 2 MiB, where the file system has those;
    what a mapping brings in, lies in pages of 4 KiB. Of the Python runtime, whose image each guest
    maps, a seventh more guests start in a second then.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        if is_in_memory(file.fileno()):
            return
        part = bytearray(_PART)
        while file.readinto(part):
            pass


def is_in_memory(file: int) -> bool:
    """True if the system has all of a file in memory, as far as it says so."""
    byte = bytearray(1)
    try:
        for place in range(0, os.fstat(file).st_size, _PROBED):
            os.preadv(file, [byte], place, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # the file system cannot tell
        return True
    return True


def digest_of(program: bytes | mmap) -> str:
    """Names a program in the cache."""
    return hashlib.sha256(program).hexdigest()[:32]


def digest_of_file(path: Path) -> str:
    """As `digest_of`; a runtime of 40 MB takes 20 ms, and a start asks twice.

    Raises:
        OSError: if it cannot be read.
    """
    return _digest_of_file(path, *_stamp(path))


@lru_cache(maxsize=8)
def _digest_of_file(path: Path, *stamp: int) -> str:
    return _hash_file(path)[:32]


def _stamp(path: Path) -> list[int]:
    """Changes with every write to the file, however small the change."""
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
