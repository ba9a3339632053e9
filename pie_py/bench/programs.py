"""The inferlets that the benchmarks launch, and prompts for them."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pie_py.build.modules import read_program
from pie_py.build.rust import build_crate

GUESTS = Path(__file__).parent / "guests"


def bench_programs(languages: Sequence[str]) -> dict[str, bytes]:
    """The program in each language: "rust", a component, or "python" and "javascript", sources.

    The component is the file that the variable `PIE_BENCH_PROGRAM` names, or is built here.

    Raises:
        BuildError: if there is no Rust compiler that can build for WebAssembly; it says how to get
            one.
    """
    programs: dict[str, bytes] = {}
    built = os.environ.get("PIE_BENCH_PROGRAM")
    if "rust" in languages and built:
        programs["rust"] = Path(built).read_bytes()
    elif "rust" in languages:
        with tempfile.TemporaryDirectory(prefix="pie-") as folder:
            programs["rust"] = build_crate(GUESTS / "rust", Path(folder) / "b.wasm").read_bytes()
    if "python" in languages:
        programs["python"] = (GUESTS / "bench.py").read_bytes()
    if "javascript" in languages:
        programs["javascript"] = read_program(GUESTS / "bench.ts")
    return programs


def fresh_copy(program: bytes, language: str) -> bytes:
    """The same program under another content hash, so that no cache knows it."""
    mark = os.urandom(8).hex()
    if language == "python":
        return program + f"\n# {mark}\n".encode()
    if language == "javascript":
        return program + f"\n// {mark}\n".encode()
    # A custom section (id 0) at the end: name length, name.
    name = mark.encode()
    return program + bytes([0, len(name) + 1, len(name)]) + name


def random_prompt(length: int, vocabulary: int, seed: float) -> str:
    """Token ids as JSON, away from the special tokens at the vocabulary's start."""
    return json.dumps(random.Random(seed).choices(range(16, vocabulary), k=length))
