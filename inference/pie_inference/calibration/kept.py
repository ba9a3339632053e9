"""The findings of calibration, kept in the user's cache for later starts on the same machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import structlog
import torch

from pie_inference.handlers.base import ServedModel
from pie_py import __version__
from pie_py.config.kept_files import cache_folder, used
from pie_py.config.platform import cpu_facts
from pie_py.config.whole_files import write_whole

log = structlog.get_logger("pie.worker")

# A measurement in a bad moment, beside other work, does not stay.
KEPT_SECONDS = 7 * 86400.0


class Calibration:
    """The measurements of a model as it is served here: by these versions, on this CPU or GPU."""

    def __init__(self, model: ServedModel) -> None:
        """Reads what an earlier start has found; a damaged or old file counts as none."""
        self.costs: dict[str, Any] | None = None  # see `costs.measure`
        # Ranks measure together, so that all or none of them may find a file.
        self._file = None if model.ranks.size > 1 else _file(model)
        if self._file is not None:
            self._read(self._file)

    def write(self) -> None:
        """Writes what is found by now."""
        if self._file is None:
            return
        content = json.dumps({"costs": self.costs}).encode()
        try:
            write_whole(self._file, f"{_digest(content)}\n".encode() + content)
            used(self._file, "*.json")
        except OSError as error:
            log.warning("what was measured is not kept", reason=str(error))

    def _read(self, file: Path) -> None:
        try:
            if file.stat().st_mtime < time.time() - KEPT_SECONDS:
                return
            digest, _, content = file.read_bytes().partition(b"\n")
        except OSError:  # there is none, mostly
            return
        if digest != _digest(content).encode():
            log.warning("a damaged file: it is measured again", file=str(file))
            return
        self.costs = json.loads(content)["costs"]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _file(model: ServedModel) -> Path:
    said = model.description
    folder = Path(said.folder)
    facts = [
        *(__version__, torch.__version__, _chip(model.device), torch.get_num_threads()),
        *(_digest((folder / "config.json").read_bytes()), said.dtype, str(model.cache.data.dtype)),
        # Both tell weights of few bits from others: as a checkpoint has them, or rounded here.
        *(sum(f.stat().st_size for f in filter(Path.is_file, folder.iterdir())), said.few_bits),
        *(said.page_size, said.max_batch_tokens, said.host_pages > 0),
        model.fused_steps is not None,
    ]
    return cache_folder() / "calibration" / f"{_digest(json.dumps(facts).encode())[:32]}.json"


def _chip(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in cpu_facts().splitlines():
        if line.startswith("model name"):
            return f"{line} {os.cpu_count()}"
    return f"{platform.processor()} {os.cpu_count()}"
