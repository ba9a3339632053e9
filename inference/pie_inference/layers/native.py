"""The functions of `step.c` and `grouped.c`, compiled: by the wheel's maker, or here.

`python -m pie_inference.layers.native` says which are in use.

A wheel may carry the library for usual CPUs, and an installed checkout has it for its own. Else it
is compiled for this machine when first needed and kept in the user's cache folder. Its threads are
those of PyTorch: it is linked to no OpenMP of its own.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import structlog
import torch

from pie_inference.layers.variants import NoLibrary, best_variant, compiled_library
from pie_py.config.kept_files import own_folder, used
from pie_py.config.logs import first_time
from pie_py.config.platform import cpu_facts, proc
from pie_py.config.shipped_files import shipped_folder

log = structlog.get_logger("pie.worker.load")

_OPENMP = re.compile(r"/.*/lib(?:g|i|)omp\S*\.(?:so\S*|dylib)")


class Product(ctypes.Structure):
    """The structure of that name in `grouped.c`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("packed", "x", "x_groups", "bias", "residual", "y")),
        *((name, ctypes.c_long) for name in ("rows", "inputs", "outputs", "group", "y_stride")),
        *((name, ctypes.c_int) for name in ("bits", "half", "bfloat16", "rounds")),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None, and a warning, where they cannot be had."""
    try:
        return _shipped() or _loaded(_compiled())
    except (NoLibrary, OSError, subprocess.SubprocessError) as error:
        log.warning(
            "no kernels of our own: weights of few bits are widened, and bfloat16 is multiplied by"
            " PyTorch; is there a C compiler (cc)?",
            reason=str(error),
        )
        return None


def described() -> tuple[bool, str]:
    """True if there are kernels, and which; or why there are none, and the cost of that."""
    variant = best_variant(cpu_facts())
    try:
        shipped = _shipped() is not None
        if not shipped:
            _loaded(_compiled())
    except (NoLibrary, OSError, subprocess.SubprocessError) as error:
        return False, f"{error}: tokens take up to six times as long"
    return True, f"for {variant or 'this CPU'}, {'of the wheel' if shipped else 'compiled here'}"


def needed_library() -> ctypes.CDLL:
    """The compiled functions, for what is packed by them, or has asked whether they are there."""
    found = library()
    assert found is not None
    return found


def _shipped() -> ctypes.CDLL | None:
    """The library in the wheel for this CPU, if it does and it can be loaded."""
    folder = shipped_folder("kernels")
    if not folder.is_dir():
        return None
    variant = best_variant(cpu_facts())
    file = folder / f"{variant}.so"
    if variant is None or not file.is_file():
        return None
    try:
        found = _loaded(file)
        log.info("the wheel's kernels", variant=variant)
        return found
    except OSError as error:  # made where libraries were newer
        log.warning("the wheel's kernels are compiled here instead", reason=str(error))
        return None


def _compiled() -> Path:
    folders = [shipped_folder("kernels"), own_folder("native")]
    return used(compiled_library(folders, first_time), "*.so")


def _loaded(file: Path) -> ctypes.CDLL:
    omp = _OPENMP.search(proc("self/maps")) or _OPENMP.search(
        "\n".join(map(str, Path(torch.__file__).parent.glob("lib/*omp*")))
    )
    if omp is None:
        raise NoLibrary("PyTorch has no OpenMP")
    ctypes.CDLL(omp[0], ctypes.RTLD_GLOBAL)
    found = ctypes.CDLL(str(file))
    pointer, product = ctypes.c_void_p, ctypes.POINTER(Product)
    found.multiply.argtypes = (product, pointer, pointer, pointer, ctypes.c_long)
    found.widen.argtypes = (product, pointer, ctypes.c_long, pointer)
    found.pack.argtypes = (product, pointer, pointer, pointer, pointer)
    found.step.argtypes = (pointer, pointer, ctypes.c_long, ctypes.c_long)
    found.step_room.argtypes = (pointer,) * 4
    found.find_shared.argtypes = (pointer,) * 4
    found.attend_rows.argtypes = (*(pointer,) * 4, ctypes.c_long, pointer)
    found.attend_room.argtypes = (pointer, pointer)
    found.attend_row.argtypes = (pointer,) * 3
    numbers = (ctypes.c_long, pointer, ctypes.c_float)
    found.score_pages.argtypes = (pointer, pointer, pointer, *numbers, pointer, pointer)
    found.widen.restype = found.pack.restype = found.step.restype = None
    found.attend_row.restype = found.attend_rows.restype = found.score_pages.restype = None
    found.step_room.restype = found.attend_room.restype = ctypes.c_long
    return found


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print(json.dumps(described()))
