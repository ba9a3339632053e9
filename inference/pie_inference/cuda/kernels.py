"""FlashInfer's kernels: those for layers, and the compilation of all that models will use."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from pie_inference.attention.flashinfer import decodes_on_tensor_cores
from pie_inference.errors import LoadError
from pie_inference.layers.kernels import Kernels
from pie_inference.models.shape import ModelShape
from pie_py.config.logs import first_time
from pie_py.config.model import FlashInferConfig

log = structlog.get_logger("pie.worker")
HOPPER = 9  # major compute capability of the chips that the third generation of kernels is for


def flashinfer_kernels(config: FlashInferConfig, library: Any) -> Kernels:
    """Those that are wanted, of the module `flashinfer`; they compute in 16 bits."""
    without = config.without

    def rotate(heads: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> None:
        # The kernel takes queries and keys, which it does not treat differently.
        library.apply_rope_with_cos_sin_cache_inplace(
            positions, heads[:, :1], heads[:, 1:], heads.shape[2], table
        )

    return Kernels(
        norm=None if "norm" in without else library.rmsnorm,
        norm_from_one=None if "norm" in without else library.gemma_rmsnorm,
        gated=(
            {}
            if "activation" in without
            else {"silu": library.silu_and_mul, "gelu_tanh": library.gelu_tanh_and_mul}
        ),
        rotate=None if "rope" in without else rotate,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that kernels are for."""

    config: FlashInferConfig
    shape: ModelShape
    dtype: torch.dtype
    stored: torch.dtype  # of keys and values
    gated: str = "silu"


def compile_kernels(models: Iterable[Wanted], capability: tuple[int, int]) -> None:
    """Compiles what is not in FlashInfer's cache yet, for a GPU of a compute capability, which need
    not be there; takes minutes the first time on a machine.
    """
    specs = {spec.name: spec for model in models for spec in _specs(model, capability[0])}
    missing = [spec for spec in specs.values() if not spec.is_compiled]
    if not missing:
        return
    first_time(f"compiling {len(missing)} modules of kernels (once, minutes)")
    start = time.perf_counter()
    try:
        importlib.import_module("flashinfer.jit").build_jit_specs(missing)
    except RuntimeError as error:
        raise LoadError(
            f"FlashInfer's kernels cannot be compiled; mend the CUDA toolkit, leave out what fails"
            f" (flashinfer.without), or set attention to torch: {str(error)[-1000:]}"
        ) from None
    log.info("kernels compiled", seconds=round(time.perf_counter() - start, 1))


def _specs(model: Wanted, generation: int) -> list[Any]:
    jit = importlib.import_module("flashinfer.jit")
    config, shape = model.config, model.shape
    index, head = torch.int32, shape.head_dim
    dtypes = (model.dtype, model.stored, model.dtype, index)
    tensor_cores = decodes_on_tensor_cores(config, shape.heads, shape.kv_heads)
    plain = model.stored == model.dtype
    newest = "fa3" if generation == HOPPER and plain else "fa2"
    prefill = newest if config.prefill == "auto" or not plain else config.prefill
    found = []
    for v in dict.fromkeys(shape.attention):
        kind = (head, head, 0, v.window is not None, bool(v.softcap))
        # The second generation does masks, and decoding on tensor cores.
        for kernels in {prefill, "fa2"}:
            found.append(jit.gen_batch_prefill_module(kernels, *dtypes, *kind, False))
        if not tensor_cores:
            found.append(jit.gen_batch_decode_module(*dtypes, *kind))
    for name, module, maker in (
        ("masks", "quantization", "gen_quantization_module"),  # packs them
        ("append", "page", "gen_page_module"),
        ("norm", "norm", "gen_norm_module"),
        ("rope", "rope", "gen_rope_module"),
    ):
        if name not in config.without:
            found.append(getattr(importlib.import_module(f"flashinfer.jit.{module}"), maker)())
    if "activation" not in config.without:
        found.append(jit.gen_act_and_mul_module(model.gated))
    return found
