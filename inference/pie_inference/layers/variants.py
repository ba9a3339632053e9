"""The worker's C kernels: how they are compiled, and for which CPUs a wheel carries them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

FLAGS = (
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-w",
)
SECONDS = 300  # for the compiler: a few on an idle machine

_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_BFLOAT16 = _V4 | {"avx512_bf16"}
# The best first: what the compiler is told, and the flags that Linux must report of the CPU.
VARIANTS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "amx": (
        ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        _BFLOAT16 | {"amx_tile", "amx_bf16"},
    ),
    "avx512-bf16": (("-march=x86-64-v4", "-mavx512bf16"), _BFLOAT16),
    "avx512": (("-march=x86-64-v4",), _V4),
    "avx2": (("-march=x86-64-v3",), _V3),
}


def compile_library(compiler: str, flags: Sequence[str], source: Path, target: Path) -> None:
    """Makes a shared library of a C file. It appears whole or not at all. Raises `OSError` if the
    compiler cannot be run, or the library cannot be written, and `subprocess.SubprocessError` if it
    fails, with what it says, or takes too long.
    """
    with TemporaryDirectory(dir=target.parent) as made:
        # Compiled for OpenMP and not linked to one: PyTorch's is used.
        _run(compiler, *flags, "-c", str(source), "-o", f"{made}/kernel.o")
        _run(compiler, "-shared", f"{made}/kernel.o", "-o", f"{made}/kernel.so")
        Path(made, "kernel.so").replace(target)


def variant_flags(name: str) -> tuple[str, ...]:
    """What the compiler is told for a variant, in place of `FLAGS`, which mean this CPU."""
    instructions, _ = VARIANTS[name]
    return (*(flag for flag in FLAGS if "-march" not in flag), *instructions)


def best_variant(cpuinfo: str) -> str | None:
    """The variant for a CPU of which /proc/cpuinfo says this; None if it runs none."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    return next((name for name, (_, needed) in VARIANTS.items() if needed <= flags), None)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr[-500:])
