"""Which device a model is computed on."""

from __future__ import annotations

import torch

from pie_inference.errors import LoadError
from pie_inference.parallel.ranks import ALONE, Ranks


def choose_device(wanted: str, ranks: Ranks = ALONE) -> torch.device:
    """The device that a configuration's `device` names. Each rank gets a GPU of its own.

    Raises:
        LoadError: if there is no such device.
    """
    if ranks.size > 1 and wanted != "cpu" and torch.cuda.is_available():
        if wanted not in ("auto", "cuda"):
            raise LoadError(f"device {wanted!r}: with tensor_parallel_size it is cuda, cpu or auto")
        wanted = f"cuda:{ranks.local_rank}"
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise LoadError(f"device {wanted!r}: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise LoadError(f"device {wanted!r} is not supported; use cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadError(
            f"there is no device {wanted!r}: {torch.cuda.device_count()} CUDA devices are visible"
        )
    if device.type == "cuda" and device.index is None:  # one device has one name
        device = torch.device("cuda", torch.cuda.current_device())
    return device
