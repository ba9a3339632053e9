"""The description of a model for the control process, with what its embeddings are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pie_inference.checkpoints.loader import stop_tokens
from pie_inference.checkpoints.quantized import quantization
from pie_inference.loading.network import LoadedNetwork
from pie_inference.loading.sizing import PoolSizes
from pie_inference.memory.host_memory import HostMemory
from pie_inference.models.by_transformers.network import ByTransformers
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
        name=config.name or Path(config.source).name,
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
        image_rule=asdict(images.rule) if images else None,
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
        pooling=pooling(loaded.folder, loaded.facts),
        no_attend=no_attend(loaded),
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
    if isinstance(loaded.network, ByTransformers):
        return f"{loaded.architecture} runs as transformers' module, whose layers take none"
    if loaded.config.deterministic:
        return "the model is `deterministic`: an adapter's sums depend on the batch"
    return ""


def _traits(loaded: LoadedNetwork) -> list[str]:
    if isinstance(loaded.network, ByTransformers):
        return [trait for trait in TRAITS if trait != "adapter"]
    if loaded.network.images:
        return [*TRAITS, "input-image"]
    return TRAITS if loaded.ranks.size == 1 else SHARED_TRAITS


# llama.cpp's numbers of `pooling_type`; 0 leaves it open.
_GGUF = {0: "last", 1: "mean", 3: "last"}
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
_NAMES = {"mean": "mean", "lasttoken": "last"}
_PLAIN = ("Transformer", "Pooling", "Normalize")


def pooling(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """`last` or `mean`, by `modules.json` of sentence-transformers or a GGUF; `last` where a
    checkpoint says nothing, and None where it wants what is not computed here.
    """
    if facts.get("is_causal") is False or facts.get("use_bidirectional_attention"):
        return None
    if "pooling_type" in facts:
        return _GGUF.get(facts["pooling_type"])
    found: str | None = "last"
    with suppress(OSError):
        for module in _read(folder / "modules.json", list):
            kind = str(module.get("type", "")).rpartition(".")[2]
            if kind not in _PLAIN:
                return None
            if kind == "Pooling":
                found = _mode(_read(folder / str(module.get("path", "")) / "config.json", dict))
    return found


def _mode(config: dict[str, Any]) -> str | None:
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if not on and "pooling_mode" in config:
        return _NAMES.get(str(config["pooling_mode"]))
    return _MODES.get(on[0]) if len(on) == 1 else None


def _read(file: Path, kind: type[Any]) -> Any:
    """A file's object; empty if it is damaged. Raises `OSError` if it lacks."""
    with suppress(ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, kind) else kind()
    return kind()
