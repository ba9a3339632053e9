"""Prepares a GPU before pools are allocated: compiles kernels, measures working memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import structlog
import torch

from pie_inference.calibration import run_trial
from pie_inference.cuda.kernels import Wanted, compile_kernels
from pie_inference.device import current
from pie_inference.handlers.base import ServedModel
from pie_inference.loading.network import LoadedNetwork, naming
from pie_inference.loading.pools import with_pools
from pie_inference.loading.sizing import Memory, batch_buckets, gpu_memory, pool_sizes
from pie_inference.sampling.remembered import SavedLogits

log = structlog.get_logger("pie.worker")

GRAPH_BYTES = 8 << 20  # set aside for each further graph: the first one is measured
MARGIN_BYTES = 256 << 20  # for what only some batches need


def compile_for(models: Sequence[LoadedNetwork]) -> None:
    """Compiles the FlashInfer kernels of all models, one GPU's after the other."""
    with_kernels = [model for model in models if model.flashinfer is not None]
    for device in {model.device for model in with_kernels}:
        here = [_wanted(model) for model in with_kernels if model.device == device]
        compile_kernels(here, torch.cuda.get_device_capability(device))


def pool_memory(device: torch.device, sharing: Sequence[LoadedNetwork]) -> Memory:
    """The memory of a GPU for pools of models, without their weights and what computing takes."""
    working = 0
    for model in sharing:
        if model.config.kv_pages is not None or model.config.kv_memory is not None:
            continue  # the configuration says how large its pool is
        with naming(model.config), current(device):
            working += _working_memory(device, model)
    free, total = torch.cuda.mem_get_info(device)
    utilization = max(model.config.gpu_memory_utilization for model in sharing)
    return gpu_memory(free, total, utilization, working, len(sharing))


def _wanted(loaded: LoadedNetwork) -> Wanted:
    """The kernels that a model needs."""
    network, config = loaded.network, loaded.config.flashinfer
    return Wanted(config, network.shape, loaded.dtype, loaded.stored, network.activation)


def _working_memory(device: torch.device, loaded: LoadedNetwork) -> int:
    """Bytes that a model takes in addition to weights and pools.

    It runs its largest batches with pools that just suffice. No formula would follow what cuBLAS,
    FlashInfer and the allocator take on this GPU.
    """
    _clean(device)
    free = torch.cuda.mem_get_info(device)[0]
    model, pools = _with_small_pools(loaded)
    description = model.description
    inputs = min(description.max_batch_tokens, description.max_position, model.embeds.size)
    rows = min(description.max_batch_commands, inputs)
    with torch.inference_mode():
        for lengths in ([inputs], [1] * rows):
            run_trial(model, lengths)
    torch.cuda.synchronize(device)
    taken = free - torch.cuda.mem_get_info(device)[0] - pools
    further = 0
    if model.graphs is not None:
        further = len(batch_buckets(model.graphs.sizes[-1])) * GRAPH_BYTES
    # Freed before the next model is measured: what it takes would count as that one's.
    del model
    _clean(device)
    log.info("memory that computing takes", megabytes=taken >> 20)
    return max(0, taken) + further + MARGIN_BYTES


def _with_small_pools(loaded: LoadedNetwork) -> tuple[ServedModel, int]:
    """A model with pools that suffice for one largest batch, and the bytes that those take."""
    config, shape = loaded.config, loaded.network.shape
    memory = Memory(1 << 62, 1 << 62, 1)  # no limit
    smallest = config.model_copy(update={"kv_pages": 1, "embeds": config.max_batch_tokens})
    sizes = pool_sizes(smallest, shape, loaded.dtype, loaded.stored, memory)
    most = max(1, min(config.graph_batch, config.max_batch_commands))
    saved_logits = SavedLogits(loaded.network.shape.vocab_size, loaded.device)
    return with_pools(loaded, sizes, 0, [most], saved_logits), memory.granted


def _clean(device: torch.device) -> None:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
