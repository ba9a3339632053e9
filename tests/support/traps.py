"""A folder of modules that a process imports if the folder one stands in is on its path."""

from __future__ import annotations

from pathlib import Path

NAMES = ("random", "queue", "numpy", "typing", "logging", "sitecustomize", "zmq", "torch", "trio")


def set_traps(folder: Path) -> None:
    """Writes them."""
    trap = "open(f'{__file__}.ran', 'w').close()\nraise ImportError(__file__)\n"
    for name in NAMES:
        (folder / f"{name}.py").write_text(trap)


def trapped(folder: Path) -> list[str]:
    """Which of them have run."""
    return [path.name for path in folder.glob("*.ran")]
