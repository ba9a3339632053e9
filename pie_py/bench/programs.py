"""The inferlets that the benchmarks launch, and prompts for them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from pie_py.build.rust import build_crate

GUESTS = Path(__file__).parent / "guests"


def python_program() -> bytes:
    """The Python source."""
    return (GUESTS / "bench.py").read_bytes()


def rust_program(folder: Path) -> bytes:
    """The Rust component, built into a folder.

    Raises:
        BuildError: if there is no Rust compiler that can build for WebAssembly; it says how to get one.
    """
    return build_crate(GUESTS / "rust", folder / "bench.wasm").read_bytes()


def fresh_copy(program: bytes, language: str) -> bytes:
    """The same program under another content hash, so that no cache knows it."""
    mark = os.urandom(8).hex()
    if language == "python":
        return program + f"\n# {mark}\n".encode()
    # A custom section (id 0) at the end: name length, name.
    name = mark.encode()
    return program + bytes([0, len(name) + 1, len(name)]) + name


def random_prompt(length: int, vocabulary: int, seed: int) -> str:
    """Token ids as JSON, away from the special tokens at the vocabulary's start."""
    return json.dumps(random.Random(seed).choices(range(16, vocabulary), k=length))
