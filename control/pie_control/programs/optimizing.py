"""Optimized code of a runtime, for servers to come, while one runs baseline code.

As a module it is the process that makes it: `python -m pie_control.programs.optimizing FILE JSON`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pie_control.wasm.cache import Cache, digest_of_file
from pie_control.wasm.engine import EngineConfig, compile_file, fingerprint
from pie_py.build.runtimes import RUNTIMES
from pie_py.config.processes import python_command


def is_optimized(kind: str, cache_folder: Path, config: EngineConfig) -> bool:
    """True if an engine of this configuration finds a runtime's optimized code."""
    file: Path = RUNTIMES[kind].runtime_file(cache_folder)
    if config.cache_folder is None or not file.is_file():
        return False
    cache = Cache(config.cache_folder, fingerprint(replace(config, baseline=False)))
    return cache.find(digest_of_file(file)) is not None


def optimize_beside(file: Path, config: EngineConfig) -> None:
    """Compiles a component into the cache with all care, in a process that gives way to all others.

    It takes some 10 s of the CPU, and outlives a server that ends sooner: else no run of a short
    program would ever find the code.
    """
    settings = [config.memory_bytes, config.table_elements, str(config.cache_folder)]
    subprocess.Popen(
        python_command("-m", __name__, str(file), json.dumps([*settings, config.source_lines])),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    os.nice(19)
    compile_file(sys.argv[1], *json.loads(sys.argv[2]))
