"""Weights of few bits as the kernel reads them, kept in the user's cache: later starts map the file
instead of packing them again, and servers of one model share its pages.

A file has the weights one behind the other, then a table of them as JSON, then the table's length.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
import torch

from pie_inference.layers.grouped import Packed
from pie_inference.layers.native import library
from pie_py.config.kept_files import own_folder, used

log = structlog.get_logger("pie.worker.load")

MOST_BYTES = 4 << 30  # of all files together
MOST_OF_FREE = 0.25  # of the disk's free bytes, for a file
_LENGTH = 8  # bytes, of the table's length
_SUM, _MASK = "", (1 << 64) - 1  # its name in the table, and what of it counts
# What weights in few bits are made by: another version of it makes others.
_MADE_BY = ("checkpoints", "layers", "models")


class KeptWeights:
    """The file of a checkpoint, made as it is and with these options."""

    def __init__(self, checkpoint: Path, *options: str | None) -> None:
        """Takes the checkpoint's folder, and what else the weights depend on; reads nothing yet."""
        self._is_read = False
        facts: list[Any] = [_code(), *options]
        for file in sorted(filter(Path.is_file, checkpoint.iterdir())):
            found = file.stat()  # of what a link names
            facts.append([str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ino])
        self._key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def read(self) -> dict[str, Packed]:
        """The weights by name, mapped; none where the file lacks, is damaged, or cannot be used."""
        try:
            file = self._file()
            if not file.is_file() or library() is None:
                return {}
            found = _mapped(used(file, "*.packed"))
        except OSError:  # which `keep` says, if there is anything to keep
            return {}
        except (ValueError, RuntimeError, TypeError, LookupError, AttributeError) as error:
            log.warning("a damaged file: it is made again", file=str(file), reason=str(error))
            return {}
        self._is_read = True
        return found

    def keep(self, weights: dict[str, Packed]) -> None:
        """Writes them, unless they were read or take too much of the disk, and maps them instead.
        Files that have not been used for longest make room for them.
        """
        if self._is_read or not weights:
            return
        try:
            self._write(self._file(), weights)
        except OSError as error:
            log.warning("weights are not kept as they are packed", reason=str(error))
            return
        weights.update(self.read())

    def _file(self) -> Path:
        return own_folder("weights") / f"{self._key}.packed"

    def _write(self, file: Path, weights: Mapping[str, Packed]) -> None:
        folder = file.parent
        size = sum(weight.data.nbytes for weight in weights.values())
        if size > min(MOST_BYTES, MOST_OF_FREE * shutil.disk_usage(folder).free):
            log.info("weights are not kept as they are packed: too large", bytes=size)
            return
        left = MOST_BYTES - size
        others = [(file.stat(), file) for file in filter(Path.is_file, folder.glob("*.packed"))]
        for facts, other in sorted(others, key=lambda found: -found[0].st_mtime):
            left -= facts.st_size
            if left < 0:
                other.unlink(missing_ok=True)
        table: dict[str, Any] = {
            _SUM: sum(_sum(weight.data) for weight in weights.values()) & _MASK
        }
        # Named so that one that is left goes like the others.
        with tempfile.TemporaryDirectory(dir=folder, suffix=".packed") as made:
            with Path(made, file.name).open("wb") as opened:
                for name, w in weights.items():
                    table[name] = [*w.data.shape, w.outputs, w.inputs, w.group, w.bits, w.half]
                    opened.write(w.data.numpy().data)
                encoded = json.dumps(table).encode()
                opened.write(encoded + len(encoded).to_bytes(_LENGTH, "little"))
            os.replace(Path(made, file.name), file)


def _mapped(file: Path) -> dict[str, Packed]:
    """Raises `ValueError` and others if the file is damaged."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        opened.seek(size - _LENGTH)
        length = int.from_bytes(opened.read(), "little")
        end = opened.seek(size - _LENGTH - length)
        table = json.loads(opened.read(length))
    # Private: a write to it changes no file.
    whole = torch.from_file(str(file), size=size, dtype=torch.uint8)[:end]
    if _sum(whole) != table.pop(_SUM):
        raise ValueError("another sum")
    found, start = {}, 0
    for name, (blocks, width, *more) in table.items():
        data = whole[start : start + blocks * width].view(blocks, width)
        found[name] = Packed(data, *more)
        start += blocks * width
    return found


def _sum(data: torch.Tensor) -> int:
    """Reads all pages, which the first forward would do, too."""
    return int(data.view(-1).view(torch.int64).sum()) & _MASK


def _code() -> str:
    """Stands for the code that makes weights, and arranges them for the kernel."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for folder in _MADE_BY:
        for file in sorted((package / folder).glob("*.[pc]*")):
            if file.is_file():
                digest.update(file.read_bytes())
    return digest.hexdigest()
