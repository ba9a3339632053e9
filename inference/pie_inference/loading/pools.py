"""Gives a network its pools, and the attention over them: then it can be served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pie_inference.attention import AttentionBackend
from pie_inference.attention.kernel import KernelAttention, knows
from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.handlers.base import ServedModel
from pie_inference.layers.step import RowAttention
from pie_inference.loading.description import DRAFT_EMBEDS, describe_model, no_attend
from pie_inference.loading.network import LoadedNetwork
from pie_inference.loading.sizing import PoolSizes
from pie_inference.memory.embeds import EmbedPool
from pie_inference.memory.host_memory import HostMemory
from pie_inference.memory.key_bounds import KeyBounds
from pie_inference.memory.kv_cache import KvCache
from pie_inference.memory.states import States
from pie_inference.models.decoder import Decoder
from pie_inference.models.fused_steps import fused_steps
from pie_inference.sampling.pool import SamplerPool
from pie_inference.sampling.remembered import SavedLogits

if TYPE_CHECKING:
    from pie_inference.cuda.decode_graphs import DecodeGraphs
    from pie_inference.cuda.fused_sampling import FusedSampling


def with_pools(
    loaded: LoadedNetwork,
    sizes: PoolSizes,
    host_pages: int,
    graph_sizes: Sequence[int],
    saved_logits: SavedLogits,
) -> ServedModel:
    """Allocates the pools of a model, and makes ready what works on them. Decoding steps of
    `graph_sizes` are recorded, if the device records steps; all models share `saved_logits`.
    """
    network, device = loaded.network, loaded.device
    with torch.inference_mode():
        cache = _kv_cache(loaded, sizes.kv_pages)
        shape = network.shape
        rows = sizes.embeds + DRAFT_EMBEDS
        embeds = EmbedPool(rows, shape.hidden, loaded.dtype, device, shape.image_layers)
        lens = network.lens if isinstance(network, Decoder) else None
        samplers = SamplerPool(network.shape.vocab_size, device, lens=lens)
        fused_sampling: FusedSampling | None = None
        # With other kernels prompts would have other last bits than steps.
        alike = loaded.config.deterministic
        steps = None
        if device.type == "cpu":
            steps = fused_steps(network, cache, embeds, loaded.adapters.get, alike)
        if device.type == "cuda":
            from pie_inference.cuda.fused_sampling import fused_sampling_for

            fused_sampling = fused_sampling_for(loaded.config, network, embeds, samplers)
        host = HostMemory(cache, host_pages)
        attention, graphs = _attention(loaded, cache, embeds, sizes.states, graph_sizes)
    return ServedModel(
        description=describe_model(loaded, sizes, samplers, host),
        network=network,
        cache=cache,
        embeds=embeds,
        attention=attention,
        device=device,
        samplers=samplers,
        saved_logits=saved_logits,
        host=host,
        adapters=loaded.adapters,
        graphs=graphs,
        fused_steps=steps,
        fused_sampling=fused_sampling,
        key_bounds=None if no_attend(loaded) else KeyBounds(cache),
        row_attention=_row_attention(loaded, cache),
        ranks=loaded.ranks,
    )


def _kv_cache(loaded: LoadedNetwork, pages: int) -> KvCache:
    config, shape = loaded.config, loaded.network.shape
    return KvCache(
        layers=shape.layers,
        pages=pages,
        page_size=config.page_size,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        scratch=config.max_batch_tokens,
        dtype=loaded.dtype,
        device=loaded.device,
        stored=loaded.stored,
        latent=shape.latent,
        recurrent=(0, 0) if (r := shape.recurrent) is None else (r.layers, r.width),
    )


def _row_attention(loaded: LoadedNetwork, cache: KvCache) -> RowAttention | None:
    shape = loaded.network.shape
    scored = any(one.scored for one in shape.attention)  # which a row that programs see is not yet
    if no_attend(loaded) or scored or not knows(cache, shape.heads, shape.attention):
        return None
    return RowAttention(shape.heads, shape.kv_heads, shape.head_dim, cache.dtype)


def _attention(
    loaded: LoadedNetwork,
    cache: KvCache,
    embeds: EmbedPool,
    states: int,
    graph_sizes: Sequence[int],
) -> tuple[AttentionBackend, DecodeGraphs | None]:
    """Attention over a cache, and the recorded decoding steps if the model has any."""
    config, network = loaded.config, loaded.network
    shape = network.shape
    if loaded.flashinfer is None:
        known = knows(cache, shape.heads, shape.attention)
        backend = KernelAttention if known else TorchAttention
        pool, r = None, shape.recurrent
        if r is not None:
            sizes = r.layers, r.heads, r.key_dim, r.value_dim
            pool = States(cache, sizes, states, r.history)
        return backend(cache, shape.heads, shape.attention, pool, config.deterministic), None
    from pie_inference.attention.flashinfer import FlashInferAttention
    from pie_inference.cuda.decode_graphs import record

    attention = FlashInferAttention(
        cache,
        shape.heads,
        shape.attention,
        config.flashinfer,
        loaded.flashinfer,
        max(graph_sizes),
    )
    if not (config.graph_batch and network.graphable):
        return attention, None
    return attention, record(network, embeds, attention, graph_sizes)
