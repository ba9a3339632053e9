"""Plots of records, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """Matplotlib's `pyplot`, without a display.

    Raises:
        RuntimeError: if matplotlib is not there.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        # The same figures give the same file, and text in it can be searched.
        matplotlib.rcParams.update({"svg.hashsalt": "pie-py", "svg.fonttype": "none"})
        from matplotlib import pyplot as found
    except ImportError:
        raise RuntimeError("a plot needs matplotlib: pip install matplotlib") from None
    return found


def save(figure: Any, path: Path) -> None:
    """Writes a figure, PNG, SVG or PDF by the name's ending, and closes it.

    Raises:
        RuntimeError: if the file can't be written, or its ending is no format.
    """
    try:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"the plot can't be written to {path}: {error}") from None
    finally:
        pyplot().close(figure)
