"""The architectures of config.json that are served, and the family of each."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pie_inference.checkpoints.quantized import quantization
from pie_inference.checkpoints.sources import Sources
from pie_inference.errors import LoadError
from pie_inference.models import (
    deepseek_v3,
    gemma,
    glm,
    gpt_oss,
    layer_normed,
    llama,
    qwen,
    qwen3_vl,
)
from pie_inference.models.by_transformers.load import class_names, class_of, transformers
from pie_inference.models.decoder import Decoder
from pie_inference.models.idefics3 import Idefics3, idefics3, idefics3_rename, idefics3_tensors
from pie_inference.models.llava import Llava, llava, llava_rename, llava_tensors
from pie_inference.models.spec import Config, DecoderSpec, Shapes
from pie_inference.models.tensors import decoder_tensors, each_expert
from pie_inference.models.text_part import text_config

Rename = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read, check and build the models of one architecture."""

    tensors: Callable[[Config], Shapes]
    build: Callable[
        [Config, MutableMapping[str, torch.Tensor], torch.dtype, torch.device, Path], Decoder
    ]
    # How it is read if it is a decoder and nothing else: such models can be divided among ranks.
    decoder: Callable[[Config], DecoderSpec] | None = None
    # A stored tensor's name to the one above, or None for one that is not used.
    rename: Callable[[Config], Rename] = lambda _: str
    # Stored tensors, renamed, to the ones above, where a checkpoint has them otherwise.
    arrange: Callable[[Config, Sources], Sources] = lambda _, sources: sources
    # The configuration of the language model, if it is a part of the whole.
    text: Callable[[Config], Config] = lambda config: config


def _decoder(
    read: Callable[[Config], DecoderSpec],
    rename: Callable[[Config], Rename] = lambda _: str,
    text: Callable[[Config], Config] = lambda config: config,
) -> Architecture:
    return Architecture(
        tensors=lambda config: decoder_tensors(read(config)),
        build=lambda config, weights, dtype, device, _: Decoder(
            read(config), weights, dtype, device
        ),
        decoder=read,
        rename=rename,
        arrange=lambda config, sources: each_expert(read(config), layer_normed.together(sources)),
        text=text,
    )


_QWEN3_5 = _decoder(qwen.qwen3_5, lambda _: qwen.qwen3_5_rename, qwen.qwen3_5_text)
_QWEN3_5_MOE = _decoder(qwen.qwen3_5_moe, lambda _: qwen.qwen3_5_rename, qwen.qwen3_5_text)
_IDEFICS3 = Architecture(
    tensors=lambda config: idefics3_tensors(idefics3(config)),
    build=Idefics3,
    rename=lambda _: idefics3_rename,
    text=text_config,
)
ARCHITECTURES = {
    "LlamaForCausalLM": _decoder(llama.llama),
    "MistralForCausalLM": _decoder(llama.mistral),
    "Qwen2ForCausalLM": _decoder(qwen.qwen2),
    "Qwen3ForCausalLM": _decoder(qwen.qwen3),
    "Qwen2MoeForCausalLM": _decoder(qwen.qwen2_moe),
    "Phi3ForCausalLM": _decoder(llama.phi3),
    "PhiForCausalLM": _decoder(layer_normed.phi, lambda _: layer_normed.phi_rename),
    "CohereForCausalLM": _decoder(layer_normed.cohere),
    "Cohere2ForCausalLM": _decoder(layer_normed.cohere2),
    "Starcoder2ForCausalLM": _decoder(layer_normed.starcoder2),
    "StableLmForCausalLM": _decoder(layer_normed.stablelm, lambda _: layer_normed.stablelm_rename),
    "SmolLM3ForCausalLM": _decoder(llama.smollm3),
    "Olmo2ForCausalLM": _decoder(llama.olmo2),
    "GraniteForCausalLM": _decoder(llama.granite),
    "GraniteMoeForCausalLM": _decoder(llama.granite_moe),
    "GptOssForCausalLM": _decoder(gpt_oss.gpt_oss),
    "GlmForCausalLM": _decoder(glm.glm),
    "Glm4ForCausalLM": _decoder(glm.glm4),
    "Glm4MoeForCausalLM": _decoder(glm.glm4_moe, deepseek_v3.without_prediction),
    "GemmaForCausalLM": _decoder(gemma.gemma),
    "Gemma2ForCausalLM": _decoder(gemma.gemma2),
    "Gemma3ForCausalLM": _decoder(gemma.gemma3),
    "DeepseekV3ForCausalLM": _decoder(deepseek_v3.deepseek_v3, deepseek_v3.without_prediction),
    "Gemma3ForConditionalGeneration": _decoder(
        gemma.gemma3_within, lambda _: gemma.gemma3_rename, gemma.gemma3_text
    ),
    "MixtralForCausalLM": _decoder(llama.mixtral),
    "Qwen3MoeForCausalLM": _decoder(qwen.qwen3_moe),
    "Qwen3NextForCausalLM": _decoder(qwen.qwen3_next, qwen.qwen3_next_rename),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5_MOE,
    "Qwen3VLForConditionalGeneration": Architecture(
        tensors=lambda config: qwen3_vl.qwen3_vl_tensors(qwen3_vl.qwen3_vl(config)),
        build=qwen3_vl.Qwen3Vl,
        text=qwen3_vl.qwen3_vl_text,
    ),
    "LlavaForConditionalGeneration": Architecture(
        tensors=lambda config: llava_tensors(llava(config)),
        build=Llava,
        rename=lambda config: partial(llava_rename, llava(config)),
        text=text_config,
    ),
    "Idefics3ForConditionalGeneration": _IDEFICS3,
    "SmolVLMForConditionalGeneration": _IDEFICS3,
}


def families() -> dict[str, str]:
    """The architectures that can be served, and whose code runs each; transformers' are tried when
    they are loaded.
    """
    theirs = class_names() - ARCHITECTURES.keys() if transformers() else set()
    ours = dict.fromkeys(ARCHITECTURES, "pie_py")
    return ours | dict.fromkeys(sorted(theirs), "transformers")


def with_head(config: Config) -> Config:
    """A model that was saved without a head (`Qwen3Model`), as models for embeddings are, as one
    whose head is its embedding.
    """
    names = config.get("architectures")
    for name in names if isinstance(names, list) else []:
        whole = str(name).removesuffix("Model") + "ForCausalLM"
        if whole in ARCHITECTURES and name not in ARCHITECTURES:
            return {**config, "architectures": [whole], "tie_word_embeddings": True}
    return config


def architecture_of(config: Config) -> str:
    """The architecture that a config.json names: a key of `ARCHITECTURES`, or else a class that
    transformers has. Raises `LoadError` if it names none that is supported, or its quantization is
    not.
    """
    quantization(config)  # refuses a method that is not known
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise LoadError(f"config.json: 'architectures' is {names!r}, not a list")
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    for name in names:
        if class_of(str(name)) is not None:
            return str(name)
    there = f"{', '.join(map(str, names))[:200] or 'unnamed'}"
    raise LoadError(
        f"config.json: architecture {there} is not supported: "
        + (
            "it is none that writes text, of ours or transformers'"
            if transformers()
            else "it is not among ours, and transformers', which may have it, is not there:"
            " `pip install 'pie-py[models]'`"
        )
        + "; `pie-py models --families` lists what is"
    )
