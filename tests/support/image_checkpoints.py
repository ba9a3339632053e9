"""Small random checkpoints of all families that read images."""

from __future__ import annotations

from pathlib import Path

from support.idefics_checkpoints import make_idefics
from support.llava_checkpoints import KINDS, make_llava
from support.qwen_vl_checkpoints import make_qwen_vl

IMAGE_KINDS = (*KINDS, "idefics3", "qwen3-vl")


def make_image_checkpoint(folder: Path, kind: str) -> Path:
    """Writes a model of a kind into a folder, and returns the folder."""
    if kind in KINDS:
        return make_llava(folder, kind)
    return make_idefics(folder) if kind == "idefics3" else make_qwen_vl(folder)
