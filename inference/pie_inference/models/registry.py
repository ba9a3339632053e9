"""The architectures of config.json that are served, and the family of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pie_inference.checkpoints.quantized import quantization
from pie_inference.checkpoints.sources import Sources
from pie_inference.errors import LoadError
from pie_inference.models import (
    deepseek_v3,
    gemma,
    glm,
    gpt_oss,
    llama,
    qwen,
)
from pie_inference.models.by_transformers.load import class_names, class_of, transformers
from pie_inference.models.spec import Config, DecoderSpec, Shapes
from pie_inference.models.tensors import decoder_tensors, each_expert

Rename = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read the models of one architecture."""

    decoder: Callable[[Config], DecoderSpec]
    # A stored tensor's name to the one here, or None for one that is not used.
    rename: Callable[[Config], Rename] = lambda _: str
    # The configuration of the language model, if it is a part of the whole.
    text: Callable[[Config], Config] = lambda config: config

    def tensors(self, config: Config) -> Shapes:
        """Names and shapes of the tensors that a checkpoint must have."""
        return decoder_tensors(self.decoder(config))

    def arrange(self, config: Config, sources: Sources) -> Sources:
        """Stored tensors, renamed, to those, where a checkpoint has them otherwise."""
        return each_expert(self.decoder(config), sources)


_QWEN3_5 = Architecture(qwen.qwen3_5, lambda _: qwen.qwen3_5_rename, qwen.qwen3_5_text)
_QWEN3_5_MOE = Architecture(qwen.qwen3_5_moe, lambda _: qwen.qwen3_5_rename, qwen.qwen3_5_text)
ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(llama.llama),
    "MistralForCausalLM": Architecture(llama.mistral),
    "Qwen2ForCausalLM": Architecture(qwen.qwen2),
    "Qwen3ForCausalLM": Architecture(qwen.qwen3),
    "Qwen2MoeForCausalLM": Architecture(qwen.qwen2_moe),
    "Phi3ForCausalLM": Architecture(llama.phi3),
    "SmolLM3ForCausalLM": Architecture(llama.smollm3),
    "GraniteForCausalLM": Architecture(llama.granite),
    "GraniteMoeForCausalLM": Architecture(llama.granite_moe),
    "GptOssForCausalLM": Architecture(gpt_oss.gpt_oss),
    "GlmForCausalLM": Architecture(glm.glm),
    "Glm4ForCausalLM": Architecture(glm.glm4),
    "Glm4MoeForCausalLM": Architecture(glm.glm4_moe, deepseek_v3.without_prediction),
    "GemmaForCausalLM": Architecture(gemma.gemma),
    "Gemma2ForCausalLM": Architecture(gemma.gemma2),
    "Gemma3ForCausalLM": Architecture(gemma.gemma3),
    "DeepseekV3ForCausalLM": Architecture(deepseek_v3.deepseek_v3, deepseek_v3.without_prediction),
    "MixtralForCausalLM": Architecture(llama.mixtral),
    "Qwen3MoeForCausalLM": Architecture(qwen.qwen3_moe),
    "Qwen3NextForCausalLM": Architecture(qwen.qwen3_next, qwen.qwen3_next_rename),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5_MOE,
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
