"""Small arrays on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor on a device; on the CPU its memory is shared.

    To a GPU it goes through pinned memory, in the order of the stream, and nothing waits: from
    pageable memory PyTorch would wait for all that the device has to do.
    """
    tensor = pinned(array, device)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def pinned(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor on the host, in memory that a GPU copies from; for the CPU it is
    shared.
    """
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory()


def upload_index(array: NDArray[np.integer[Any]], device: torch.device) -> torch.Tensor:
    """Indices as int64, as PyTorch wants them."""
    return upload(array.astype(np.int64), device)
