"""The device, the attention and the dtype of keys and values that a model is served with."""

from __future__ import annotations

import importlib
from types import ModuleType

import structlog
import torch

from pie_inference.attention import Chunk
from pie_inference.errors import LoadError
from pie_inference.models.shape import ModelShape
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_py.config.model import ModelConfig

log = structlog.get_logger("pie.worker")
HEAD_DIMS = (64, 128, 256)  # that FlashInfer's kernels are for
FP8 = torch.float8_e4m3fn
FP8_CAPABILITY = (8, 9)  # of chips with 8-bit floats


def choose_device(wanted: str, ranks: Ranks = ALONE) -> torch.device:
    """The device that a configuration's `device` names. Each rank gets a GPU of its own. Raises
    `LoadError` if there is no such device.
    """
    if ranks.size > 1 and wanted != "cpu" and torch.cuda.is_available():
        if wanted not in ("auto", "cuda"):
            raise LoadError(f"device {wanted!r}: with tensor_parallel_size it is cuda, cpu or auto")
        wanted = f"cuda:{ranks.rank}"
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise LoadError(f"device {wanted!r}: {error}") from None
    if device.type != "cuda" and device != torch.device("cpu"):
        raise LoadError(f"device {wanted!r} is not supported; use cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadError(
            f"there is no device {wanted!r}: {torch.cuda.device_count()} CUDA devices are visible"
        )
    if device.type == "cuda" and device.index is None:  # one device has one name
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def unsuited(shape: ModelShape, dtype: torch.dtype) -> str | None:
    """Why FlashInfer cannot serve a model, or None if it can."""
    if dtype not in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        return f"its kernels compute in bfloat16 and float16, not {name}; set dtype to bfloat16"
    if shape.sinks:
        return "its kernels that are used here have no sinks"
    if shape.recurrent is not None:
        return "it has no layers with a state"
    if any(isinstance(one.window, Chunk) for one in shape.attention):
        return "its kernels have no windows that stand still"
    if shape.latent:
        return "its kernels that are used here do not read latents"
    if shape.head_dim not in HEAD_DIMS:
        return (
            f"its kernels are for heads of {', '.join(map(str, HEAD_DIMS))}, not {shape.head_dim}"
        )
    return None


def flashinfer_for(
    config: ModelConfig, shape: ModelShape, dtype: torch.dtype, device: torch.device
) -> ModuleType | None:
    """The module `flashinfer` if a model is to be served with it, else None: by PyTorch's
    attention. Raises `LoadError` if the configuration wants it and it cannot be.
    """
    if config.attention == "torch":
        return None
    reason = "it needs an NVIDIA GPU" if device.type != "cuda" else unsuited(shape, dtype)
    if reason is None:
        try:
            return importlib.import_module("flashinfer")
        except ImportError as error:
            reason = f"{error}; install pie-py[cuda]"
    if config.attention == "flashinfer":
        raise LoadError(f"attention: FlashInfer cannot serve it: {reason}")
    if device.type == "cuda":
        log.warning("attention by PyTorch, which is slower", reason=reason)
    return None


def stored_dtype(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of keys and values in the pool. Raises `LoadError` if the chip lacks the one
    wanted.
    """
    if config.kv_dtype == "auto":
        return dtype
    if device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        if found < FP8_CAPABILITY:
            raise LoadError(
                f"kv_dtype: this GPU has no 8-bit floats (compute capability {found[0]}.{found[1]},"
                f" they came with {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]}); leave kv_dtype at auto"
            )
    return FP8
