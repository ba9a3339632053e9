"""Which family serves which architecture of config.json."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from pie_inference.checkpoints.quantized import quantization
from pie_inference.checkpoints.sources import Sources
from pie_inference.errors import LoadError
from pie_inference.models.base import Model, ModelShape
from pie_inference.models.decoder import Decoder
from pie_inference.models.deepseek_v3 import deepseek_v3, without_prediction
from pie_inference.models.gemma import gemma
from pie_inference.models.gemma2 import gemma2
from pie_inference.models.gemma3 import gemma3, gemma3_rename, gemma3_text, gemma3_within
from pie_inference.models.glm4 import glm, glm4
from pie_inference.models.glm4_moe import glm4_moe
from pie_inference.models.gpt_oss import gpt_oss
from pie_inference.models.granite import granite
from pie_inference.models.granite_moe import granite_moe
from pie_inference.models.idefics3 import (
    Idefics3,
    idefics3,
    idefics3_rename,
    idefics3_tensors,
)
from pie_inference.models.llama import llama
from pie_inference.models.llava import Llava, llava, llava_rename, llava_tensors
from pie_inference.models.mistral import mistral
from pie_inference.models.mixtral import mixtral
from pie_inference.models.olmo2 import olmo2
from pie_inference.models.phi3 import phi3
from pie_inference.models.qwen2 import qwen2
from pie_inference.models.qwen2_moe import qwen2_moe
from pie_inference.models.qwen3 import qwen3
from pie_inference.models.qwen3_5 import qwen3_5, qwen3_5_rename, qwen3_5_text
from pie_inference.models.qwen3_moe import qwen3_moe
from pie_inference.models.qwen3_next import qwen3_next, qwen3_next_rename
from pie_inference.models.qwen3_vl import Qwen3Vl, qwen3_vl, qwen3_vl_tensors, qwen3_vl_text
from pie_inference.models.smollm3 import smollm3
from pie_inference.models.spec import Config, DecoderSpec, Shapes, decoder_tensors
from pie_inference.models.stacked import each_expert
from pie_inference.models.text_part import text_config


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read, check and build the models of one architecture."""

    shape: Callable[[Config], ModelShape]
    tensors: Callable[[Config], Shapes]
    build: Callable[
        [Config, MutableMapping[str, torch.Tensor], torch.dtype, torch.device, Path], Model
    ]
    # How it is read if it is a decoder and nothing else: such models can be divided among ranks.
    decoder: Callable[[Config], DecoderSpec] | None = None
    # A stored tensor's name to the one above, or None for one that is not used.
    rename: Callable[[Config], Callable[[str], str | None]] = lambda _: str
    # Stored tensors, renamed, to the ones above, where a checkpoint has them otherwise.
    arrange: Callable[[Config, Sources], Sources] = lambda _, sources: sources
    # The configuration of the language model, if it is a part of the whole.
    text: Callable[[Config], Config] = lambda config: config


def _decoder(
    read: Callable[[Config], DecoderSpec],
    rename: Callable[[Config], Callable[[str], str | None]] = lambda _: str,
) -> Architecture:
    return Architecture(
        shape=lambda config: read(config).shape,
        tensors=lambda config: decoder_tensors(read(config)),
        build=lambda config, weights, dtype, device, _: Decoder(
            read(config), weights, dtype, device
        ),
        decoder=read,
        rename=rename,
        arrange=lambda config, sources: each_expert(read(config), sources),
    )


_QWEN3_5 = replace(_decoder(qwen3_5, lambda _: qwen3_5_rename), text=qwen3_5_text)
_IDEFICS3 = Architecture(
    shape=lambda config: idefics3(config).decoder.shape,
    tensors=lambda config: idefics3_tensors(idefics3(config)),
    build=Idefics3,
    rename=lambda _: idefics3_rename,
    text=text_config,
)
ARCHITECTURES = {
    "LlamaForCausalLM": _decoder(llama),
    "MistralForCausalLM": _decoder(mistral),
    "Qwen2ForCausalLM": _decoder(qwen2),
    "Qwen3ForCausalLM": _decoder(qwen3),
    "Qwen2MoeForCausalLM": _decoder(qwen2_moe),
    "Phi3ForCausalLM": _decoder(phi3),
    "SmolLM3ForCausalLM": _decoder(smollm3),
    "Olmo2ForCausalLM": _decoder(olmo2),
    "GraniteForCausalLM": _decoder(granite),
    "GraniteMoeForCausalLM": _decoder(granite_moe),
    "GptOssForCausalLM": _decoder(gpt_oss),
    "GlmForCausalLM": _decoder(glm),
    "Glm4ForCausalLM": _decoder(glm4),
    "Glm4MoeForCausalLM": _decoder(glm4_moe, without_prediction),
    "GemmaForCausalLM": _decoder(gemma),
    "Gemma2ForCausalLM": _decoder(gemma2),
    "Gemma3ForCausalLM": _decoder(gemma3),
    "DeepseekV3ForCausalLM": _decoder(deepseek_v3, without_prediction),
    "Gemma3ForConditionalGeneration": Architecture(
        shape=lambda config: gemma3_within(config).shape,
        tensors=lambda config: decoder_tensors(gemma3_within(config)),
        build=lambda config, weights, dtype, device, _: Decoder(
            gemma3_within(config), weights, dtype, device
        ),
        decoder=gemma3_within,
        rename=lambda _: gemma3_rename,
        text=gemma3_text,
    ),
    "MixtralForCausalLM": _decoder(mixtral),
    "Qwen3MoeForCausalLM": _decoder(qwen3_moe),
    "Qwen3NextForCausalLM": _decoder(qwen3_next, qwen3_next_rename),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3VLForConditionalGeneration": Architecture(
        shape=lambda config: qwen3_vl(config).decoder.shape,
        tensors=lambda config: qwen3_vl_tensors(qwen3_vl(config)),
        build=Qwen3Vl,
        text=qwen3_vl_text,
    ),
    "LlavaForConditionalGeneration": Architecture(
        shape=lambda config: llava(config).decoder.shape,
        tensors=lambda config: llava_tensors(llava(config)),
        build=Llava,
        rename=lambda config: partial(llava_rename, llava(config)),
        text=text_config,
    ),
    "Idefics3ForConditionalGeneration": _IDEFICS3,
    "SmolVLMForConditionalGeneration": _IDEFICS3,
}


def architecture_of(config: Config) -> Architecture:
    """The architecture that a config.json names.

    Raises:
        LoadError: if it names none that is supported, or its quantization is not.
    """
    quantization(config)  # refuses a method that is not known
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise LoadError(f"config.json: 'architectures' is {names!r}, not a list")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise LoadError(
        f"config.json: architecture {', '.join(map(str, names)) or 'unnamed'} is not supported"
        f" (supported: {', '.join(ARCHITECTURES)})"
    )
