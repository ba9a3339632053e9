"""What guests may use, and what an engine reserves for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineConfig:
    """What all guests of an engine share."""

    max_instances: int = 1000  # guests alive at once
    memory_bytes: int = 256 << 20  # most linear memory of one guest
    table_elements: int = 100_000  # most elements of one table of a guest; CPython has 6 000
    slice_ms: float = 5.0  # longest turn of a guest that does not wait
    cache_folder: Path | None = None  # compiled code; None: not cached
    # Traps tell source lines. Programs' debug information is then read by this process, which no
    # limit holds: only for programs that are trusted.
    source_lines: bool = False


@dataclass(frozen=True)
class GuestLimits:
    """What one guest may use; the engine's own limits hold as well."""

    memory_bytes: int  # of each linear memory
    table_elements: int  # of each table
