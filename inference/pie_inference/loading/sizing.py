"""Sizes of a model's pools."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pie_inference.errors import LoadError
from pie_inference.models.shape import ModelShape
from pie_py.config.memory import available_memory
from pie_py.config.model import ModelConfig

CPU_SHARE = 0.4  # of the memory that is free once the weights are loaded, all models together
HOST_SHARE = 0.1  # of the free host memory, for swapped pages
MAX_AUTO_HOST = 8 << 30  # bytes; pinning a gigabyte takes a good part of a second
MAX_AUTO_PAGES = 1 << 17  # more is bookkeeping without use, unless it is asked for
MAX_AUTO_EMBEDS = 1 << 16
EMBED_SHARE = 1 / 16  # of the pools' memory
STATE_SHARE = 1 / 4  # likewise, if layers have states
MAX_STATES = 512  # two of each sequence; more are of sequences that do not run


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Pages of the KV pool, embeds of the embed pool, and states of sequences."""

    kv_pages: int
    embeds: int
    states: int = 0


@dataclass(slots=True)
class Memory:
    """Memory of a device for the pools of the models on it."""

    free: int  # bytes, once all weights are loaded and what computing takes is set aside
    usable: int  # bytes of it, for pools that do not say how large they want to be
    models: int  # how many share it
    granted: int = 0  # bytes, to pools so far

    @property
    def budget(self) -> int:
        """Bytes for the pools of one model that does not say how many it wants."""
        return self.usable // self.models


def cpu_memory(models: int) -> Memory:
    """The host's memory, for so many models."""
    free = available_memory()  # under the limits of containers, too
    return Memory(free, int(free * CPU_SHARE), models)


def gpu_memory(free: int, total: int, utilization: float, working: int, models: int) -> Memory:
    """A GPU's memory for pools of so many models: of the bytes that are free once all weights are
    loaded, and in all, with the share of the whole that the server may use, what is used already
    included, and the bytes that computing takes, graphs and workspaces included.
    """
    usable = int(total * utilization) - (total - free) - working
    return Memory(max(0, free - working), max(0, usable), models)


def pool_sizes(
    config: ModelConfig,
    shape: ModelShape,
    dtype: torch.dtype,
    stored: torch.dtype,
    memory: Memory,
) -> PoolSizes:
    """Sizes of a model's pools, of embeds in `dtype` and numbers as they are `stored`: what the
    configuration says, else a share of the free memory. They are added to what that has granted.
    Raises `LoadError` if there is no room, or less is granted than one largest batch needs.
    """
    free = memory.free - memory.granted
    budget = min(memory.budget, free)
    slot = shape.slot_numbers * stored.itemsize
    embed = shape.hidden * (1 + (shape.image_layers or 0)) * dtype.itemsize
    embeds = config.embeds or max(
        config.max_batch_tokens, min(MAX_AUTO_EMBEDS, int(budget * EMBED_SHARE) // embed)
    )
    page = config.page_size * slot
    scratch = -(-config.max_batch_tokens // config.page_size) + 1  # pages
    state = 0 if shape.recurrent is None else shape.recurrent.state_bytes
    states = max(2, min(MAX_STATES, int(budget * STATE_SHARE) // state)) if state else 0
    overhead = (embeds + 1) * embed + scratch * page + states * state
    if config.kv_pages is not None:
        pages = config.kv_pages
    elif config.kv_memory is not None:
        pages = config.kv_memory // page
    else:
        pages = min(MAX_AUTO_PAGES, (budget - overhead) // page)
    if pages < 1:
        raise LoadError(
            f"no memory for the KV pool: a page takes {page:,} bytes,"
            f" {max(budget - overhead, 0):,} are left to it of {free:,} free; set kv_memory or"
            " kv_pages, raise gpu_memory_utilization on a GPU, or free memory"
        )
    if pages * page + overhead > free:
        others = f", and {memory.granted:,} are other models'" if memory.granted else ""
        raise LoadError(
            f"no memory for a KV pool of {pages:,} pages and {embeds:,} embeds:"
            f" {pages * page + overhead:,} bytes are needed, {free:,} are free{others}"
        )
    memory.granted += pages * page + overhead
    return PoolSizes(kv_pages=pages, embeds=embeds, states=states)


def host_pages(
    config: ModelConfig, shape: ModelShape, dtype: torch.dtype, kv_pages: int, memory: Memory
) -> int:
    """Pages of a model, `dtype` being the pool's, in host memory: as configured, else a share of
    the free memory, no more than the KV pool has. They are added to what that has granted. Raises
    `LoadError` if there is no room for what the configuration says.
    """
    slot = shape.slot_numbers * dtype.itemsize
    page = config.page_size * slot
    free = memory.free - memory.granted
    if config.host_pages is not None:
        pages = config.host_pages
    elif config.host_memory is not None:
        pages = config.host_memory // page
    else:
        share = min(MAX_AUTO_HOST, int(memory.free * HOST_SHARE / memory.models))
        pages = max(0, min(kv_pages, min(share, free) // page))
    if pages * page > free:
        raise LoadError(
            f"not enough host memory for {pages:,} pages: {pages * page:,} bytes are needed,"
            f" {free:,} are free; set host_memory or host_pages, or free memory"
        )
    memory.granted += pages * page
    return pages


def batch_buckets(most: int) -> list[int]:
    """Batch sizes to record decoding steps for, the largest first.

    They lie closest together where an unused row costs the largest share of a step.
    """
    steps = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, most + 1, 32)]
    return sorted({size for size in steps if size < most} | {most}, reverse=True)
