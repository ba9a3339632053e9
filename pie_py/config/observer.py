"""Setting of the seam for benchmarks that look into the processes."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pie_py.config.section import Section


class ObserverConfig(Section):
    """A function that watches both processes for a benchmark; without one, nothing does."""

    observer: str = Field(pattern=r"^[\w.]+:\w+$")  # `package.module:function`
    folder: Path  # where it writes what it has found
