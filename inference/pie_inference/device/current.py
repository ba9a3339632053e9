"""The device that kernels are launched on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def current(device: torch.device) -> AbstractContextManager[object]:
    """Within it a GPU is the current one.

    PyTorch's operations go to where their tensors lie; kernels of FlashInfer's and Triton's,
    streams and events go to the current GPU.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
