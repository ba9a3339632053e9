"""The embedded models: small trained checkpoints that come with the package.

They lie in `pie_inference/embedded/<name>/`, in Hugging Face's layout; `examples/pie_tiny` trains
them. Each has a README.md, its model card.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "embedded"


def names() -> list[str]:
    """The embedded models' names."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def folder(name: str) -> Path | None:
    """The folder of an embedded model; None if there is none of this name."""
    return FOLDER / name if name in names() else None
