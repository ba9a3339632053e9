"""The description of a model for the control process, with what its embeddings are made of."""

from __future__ import annotations

from pie_inference.checkpoints.loader import stop_tokens
from pie_inference.checkpoints.quantized import quantization
from pie_inference.loading.network import LoadedNetwork
from pie_inference.loading.pooling import made_to_embed, pooling
from pie_inference.loading.sizing import PoolSizes
from pie_inference.memory.host_memory import HostMemory
from pie_inference.models.by_transformers.network import ByTransformers
from pie_inference.models.decoder import Decoder
from pie_inference.sampling.pool import SamplerPool
from pie_py.wire.plan import ModelDescription

TRAITS = [
    "allocate",
    "forward",
    "adapter",
    "input-text",
    "tokenize",
    "output-text",
    "sample",
    "offload",
    "introspect",
]

# Ranks that compute a model together can neither change its linear layers by adapters nor know what
# was attended to: each has only some of a layer's heads and columns.
SHARED_TRAITS = [trait for trait in TRAITS if trait not in ("adapter", "introspect")]

# Of the same sequences in one plan. Ranks would have to agree after which of them a plan is cut.
MOST_STEPS = 16

DRAFT_EMBEDS = 256  # for guessed tokens, of all sequences in a plan


def describe_model(
    loaded: LoadedNetwork, sizes: PoolSizes, samplers: SamplerPool, host: HostMemory
) -> ModelDescription:
    """The description of a model with such pools."""
    config, shape = loaded.config, loaded.network.shape
    bos, images = loaded.facts.get("bos_token_id"), loaded.network.images
    return ModelDescription(
        name=config.called,
        architecture=loaded.architecture,
        folder=str(loaded.folder),
        page_size=config.page_size,
        kv_pages=sizes.kv_pages,
        embeds=sizes.embeds,
        # A recurrent layer would have to compute its state again after each wrong guess.
        draft_embeds=DRAFT_EMBEDS if shape.recurrent is None else 0,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        max_position=shape.max_position,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_commands=config.max_batch_commands,
        stop_tokens=stop_tokens(loaded.folder, loaded.facts),
        bos_token=bos if isinstance(bos, int) else None,
        dtype=str(loaded.dtype).removeprefix("torch."),
        traits=_traits(loaded),
        image_place=images.place if images else None,
        image_rows=images is not None and images.in_rows,
        samplers=samplers.size,
        count_rows=samplers.count_rows,
        host_pages=host.pages,
        turns=loaded.network.turns() is not None,
        layers=shape.layers,
        heads=shape.heads * loaded.ranks.size,
        kv_heads=shape.kv_heads * loaded.ranks.size,
        head_dim=shape.head_dim,
        most_steps=MOST_STEPS if loaded.ranks.size == 1 else 1,
        adapters=list(config.adapters),
        quantized=quantization(loaded.facts),
        few_bits=list(loaded.network.few_bits),
        task="embed" if made_to_embed(loaded.folder, loaded.facts) else "generate",
        pooling=pooling(loaded.folder, loaded.facts),
        no_attend=no_attend(loaded),
        no_layers=""
        if isinstance(loaded.network, Decoder)
        else f"{loaded.architecture} runs as transformers' module",
        no_adapters=_no_adapters(loaded),
    )


def no_attend(loaded: LoadedNetwork) -> str:
    """Why a model takes no programs of the stage `attend`; empty if it does."""
    shape = loaded.network.shape
    if loaded.ranks.size > 1:
        return "several ranks compute the model, each with some of the heads"
    if shape.latent:
        return f"{loaded.architecture} has no keys of its heads, but latents"
    if shape.recurrent is not None:
        return f"layers of {loaded.architecture} have a state instead of weights"
    if loaded.config.deterministic:
        return "the model is `deterministic`: what is computed never depends on what is left out"
    return ""


def _no_adapters(loaded: LoadedNetwork) -> str:
    if loaded.ranks.size > 1:
        return "several ranks compute the model: adapters need tensor_parallel_size 1"
    if not loaded.network.sites:
        return f"{loaded.architecture} runs as transformers' module, whose layers take none"
    if loaded.config.deterministic:
        return "the model is `deterministic`: an adapter's sums depend on the batch"
    return ""


def _traits(loaded: LoadedNetwork) -> list[str]:
    if isinstance(loaded.network, ByTransformers):
        images = ["input-image"] if loaded.network.images else []
        takes = [trait for trait in TRAITS if trait != "adapter" or loaded.network.sites]
        return takes + images
    return TRAITS if loaded.ranks.size == 1 else SHARED_TRAITS
