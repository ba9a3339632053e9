"""The inferlets that the benchmarks launch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pie_py.build.rust import build_crate

GUESTS = Path(__file__).parent / "guests"


def bench_programs(languages: Sequence[str]) -> dict[str, bytes]:
    """The program in each language: "rust", a component, or "python", a source.

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
    return programs
