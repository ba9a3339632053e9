"""Loads models: first all networks, then pools in the memory that the networks leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import torch

from pie_inference.checkpoints.loader import checkpoint_folder, read_config
from pie_inference.device import current
from pie_inference.handlers.base import Served, ServedEncoder, ServedModel
from pie_inference.loading.encoders import encoder_of, load_encoder
from pie_inference.loading.network import LoadedNetwork, load_network, naming
from pie_inference.loading.pools import with_pools
from pie_inference.loading.sizing import (
    Memory,
    PoolSizes,
    batch_buckets,
    cpu_memory,
    host_pages,
    pool_sizes,
)
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_inference.sampling.remembered import SavedLogits
from pie_py.config.memory import trim
from pie_py.config.model import ModelConfig

log = structlog.get_logger("pie.worker")


def load_served(
    configs: Sequence[ModelConfig],
    ranks: Ranks = ALONE,
    located: Callable[[str, Path], None] = lambda name, folder: None,
) -> list[Served]:
    """Loads models of all kinds, encoders first: pools get the memory that is left. `located` is
    told the folder of each before it is loaded. Raises `LoadError` if one of them cannot be served;
    the text names it.
    """
    encoders = [_encoder(config, ranks, located) for config in configs]
    others = [config for config, found in zip(configs, encoders, strict=True) if found is None]
    models = iter(load_models(others, ranks) if others else ())
    return [next(models) if found is None else found for found in encoders]


def _encoder(
    config: ModelConfig, ranks: Ranks, located: Callable[[str, Path], None]
) -> ServedEncoder | None:
    """The encoder that a configuration names, if it does."""
    with naming(config):
        folder = checkpoint_folder(config.source)
        located(config.called, folder)
        checkpoint = read_config(folder)
        name = encoder_of(checkpoint)
        return None if name is None else load_encoder(config, name, checkpoint, folder, ranks)


def load_models(configs: Sequence[ModelConfig], ranks: Ranks = ALONE) -> list[ServedModel]:
    """Loads checkpoints and allocates pools for each; models of one device share its memory. Raises
    `LoadError` if one of them cannot be served; the text names it.
    """
    loaded: list[LoadedNetwork] = []
    for config in configs:
        with naming(config):
            loaded.append(load_network(config, ranks))
    trim()  # weights on their way: 150 MB of a small model, which pools may have
    memories = _memories(loaded, ranks)
    host_memory = memories[torch.device("cpu")]
    served = []
    widest = max(model.network.shape.vocab_size for model in loaded)
    saved_logits = SavedLogits(widest, loaded[0].device)
    for model in loaded:
        with naming(model.config), current(model.device):
            served.append(_sized(model, memories[model.device], host_memory, saved_logits))
    return served


def _memories(loaded: Sequence[LoadedNetwork], ranks: Ranks) -> dict[torch.device, Memory]:
    """The memory for pools on each device that has models, and on the host."""
    cpu = torch.device("cpu")
    gpus = {model.device for model in loaded} - {cpu}
    if gpus:
        # Only here, for machines without a GPU do not load what is for GPUs.
        from pie_inference.loading.gpu_setup import compile_for, pool_memory

        compile_for(loaded)
    # Models on GPUs take host memory, too: pages that are swapped out.
    on_cpu = sum(model.device == cpu for model in loaded)
    memories = {cpu: cpu_memory((on_cpu or len(loaded)) * ranks.size)}
    for device in gpus:
        memories[device] = pool_memory(device, [m for m in loaded if m.device == device])
    return memories


def _sized(
    model: LoadedNetwork, memory: Memory, host_memory: Memory, saved_logits: SavedLogits
) -> ServedModel:
    """A model with pools as large as its share of the memory allows."""
    config, shape = model.config, model.network.shape
    sizes = pool_sizes(config, shape, model.dtype, model.stored, memory)
    hosts = host_pages(config, shape, model.stored, sizes.kv_pages, host_memory)
    # All ranks run the same plans, so a page must exist on each of them.
    pages, embeds, hosts = model.ranks.smallest([sizes.kv_pages, sizes.embeds, hosts], model.device)
    most = max(1, min(config.graph_batch, config.max_batch_commands))
    served = with_pools(
        model,
        PoolSizes(pages, embeds, sizes.states),
        hosts,
        batch_buckets(most),
        saved_logits,
    )
    log.info(
        "model loaded",
        **{k: getattr(served.description, k) for k in ("name", "dtype", "kv_pages")},
    )
    return served
