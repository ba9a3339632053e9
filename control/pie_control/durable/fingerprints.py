"""Fingerprints of models: another one's tokens would not be those of a journal."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PART_BYTES = 64 << 10  # of the beginning and of the end of each large file
SUFFIXES = (".json", ".safetensors", ".gguf", ".model", ".jinja")


@cache
def fingerprint(folder: str) -> str:
    """That of the files of a model: weights, tokenizer, templates. Large ones count by their size,
    their beginning, where the tensors' names and shapes are, and their end.
    """
    found = hashlib.sha256()
    place = Path(folder)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    for path in files:
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        size = path.stat().st_size
        found.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            found.update(file.read(PART_BYTES))
            file.seek(max(0, size - PART_BYTES))
            found.update(file.read())
    return found.hexdigest()[:32]
