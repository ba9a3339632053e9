"""The worker's C kernels: how they are compiled, and for which CPUs a wheel carries them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from platform import machine
from tempfile import TemporaryDirectory

from pie_py.config.platform import cpu_facts

SOURCE = Path(__file__).with_name("step.c")
INCLUDED = Path(__file__).with_name("grouped.c")
ARM = ("aarch64", "arm64")
# For newer CPUs GCC takes an addition out of some loops' multiplications and not of others': a
# row's last bits would depend on how many there are. For this one it does so nowhere.
ONE_ORDER = ("-mtune=haswell",)
FLAGS = (
    "-O3",
    "-fno-tree-pre",  # which keeps more numbers at hand than there are registers
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-w",
    *(ONE_ORDER if machine() in ("x86_64", "AMD64") else ()),
)
SECONDS = 300  # for the compiler: a few on an idle machine

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_BFLOAT16 = (*_AVX512, "avx512_bf16")
# The best first: the flags that Linux must report of the CPU, which the compiler is told.
VARIANTS: dict[str, tuple[str, ...]] = {
    "amx": (*_BFLOAT16, "amx_tile", "amx_bf16"),
    "avx512-bf16": _BFLOAT16,
    "avx512": _AVX512,
    "avx2-vnni": (*_AVX2, "avx_vnni"),
    "avx2": _AVX2,
    "sse2": ("sse2",),
    "arm64": ("asimd",),
}


class NoLibrary(Exception):
    """Why there is none."""


def find_compiler() -> str | None:
    """The path of the C compiler, or that of `CC`."""
    return shutil.which(os.environ.get("CC") or "cc")


def compiled_library(folders: Sequence[Path], progress: Callable[[str], object]) -> Path:
    """The library for this CPU, in one of the folders; else it is compiled, into the last. Its name
    says what it is made of. `progress` is told in a sentence what takes time. Raises `NoLibrary`,
    or as `compile_library`.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NoLibrary("there is no C compiler")
    flags = flags_for(compiler, FLAGS)
    # The CPU's, for a folder that several machines share.
    cpu = re.search(r"^(?:flags|Features)\s*:.*$", cpu_facts(), re.M)
    of_cpu = machine() + (cpu[0] if cpu else "")
    made_of = (SOURCE.read_text(), INCLUDED.read_text(), *flags, compiler, of_cpu)
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32] + ".so"
    for folder in folders:
        if (file := folder / name).is_file():
            return file
    progress("compiling the kernels for this CPU (once, some seconds)")
    compile_library(compiler, flags, SOURCE, file)
    return file


def flags_for(compiler: str, flags: Sequence[str]) -> tuple[str, ...]:
    """GCC's flags as a compiler takes them: some of Clang's are others, and Apple's takes OpenMP
    from its front end alone. Raises `OSError` if it cannot be run.
    """
    asked = [compiler, "--version"]
    if "clang" not in subprocess.run(asked, capture_output=True, text=True, check=False).stdout:
        return tuple(flags)
    native = "-mcpu=native" if machine() in ARM else "-march=native"
    others = {"-fno-tree-pre": (), "-march=native": (native,), "-fopenmp": ("-Xclang", "-fopenmp")}
    return tuple(each for flag in flags for each in others.get(flag, (flag,)))


def compile_library(compiler: str, flags: Sequence[str], source: Path, target: Path) -> None:
    """Makes a shared library of a C file. It appears whole or not at all. Raises `OSError` if the
    compiler cannot be run, or the library cannot be written, and `subprocess.SubprocessError` if it
    fails, with what it says, or takes too long.
    """
    # Named so that one that is left goes like the others.
    with TemporaryDirectory(dir=target.parent, suffix=target.suffix) as made:
        # Compiled for OpenMP and not linked to one: PyTorch's is used.
        _run(compiler, *flags, "-c", str(source), "-o", f"{made}/kernel.o")
        later = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        _run(compiler, "-shared", *later, f"{made}/kernel.o", "-o", f"{made}/kernel.so")
        Path(made, "kernel.so").replace(target)


def variants_of(compiler: str) -> list[str]:
    """Those for what a compiler makes code for. Raises `OSError` if it cannot be run."""
    asked = [compiler, "-dumpmachine"]
    made = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    for_arm = made.startswith(ARM)
    known = for_arm or made.startswith("x86_64")
    return [name for name in VARIANTS if known and (name == "arm64") is for_arm]


def variant_flags(name: str) -> tuple[str, ...]:
    """The compiler's flags for a variant, in place of `FLAGS`, which mean this CPU."""
    kept = tuple(flag for flag in FLAGS if not flag.startswith(("-march", "-mtune")))
    if name == "arm64":
        return (*kept, "-march=armv8-a")
    named = (re.sub("^(avx.*)_", r"\1", flag).replace("_", "-") for flag in VARIANTS[name])
    return (*kept, *ONE_ORDER, "-march=x86-64", *(f"-m{flag}" for flag in named))


def best_variant(cpuinfo: str) -> str | None:
    """The variant for a CPU of which /proc/cpuinfo says this; None if it runs none."""
    if machine() in ARM:
        return "arm64"  # which each of them runs
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    return next((name for name, needed in VARIANTS.items() if flags.issuperset(needed)), None)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr[-500:])
