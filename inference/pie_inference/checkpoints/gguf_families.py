"""The architectures of llama.cpp that are served: config.json, and names of tensors."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pie_inference.checkpoints.fields import MAX_EXPERTS, Fields
from pie_inference.checkpoints.gguf_reader import GgufFile
from pie_inference.errors import LoadError

GATES = "ffn_gate_exps.weight"  # of all experts of a layer
FACTORS = "rope_freqs.weight"  # what each frequency is divided by
SIGMOID = 2  # of `expert_gating_func`
STILL = 1e29  # a frequency that is divided by this much, or more, turns nothing
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_ALONE = {
    "attn_sinks": "self_attn.sinks",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_bias",
}
_BOTH_SIDES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Where a GGUF has what a config.json names, its architecture's name before each.
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "partial_rotary_factor": "rope.dimension_count",
    "short_factor": SHORT,
    "long_factor": LONG,
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "num_experts_per_tok": "expert_used_count",
}
# What a file may say of each layer. In `Facts` stands that of the first: where another layer's
# differs, so do its tensors, and those are held against config.json.
_BY_LAYER = ("feed_forward_length", "attention.head_count", "attention.head_count_kv")
_KEY = re.compile("|".join(map(r"\b{}\b".format, _KEYS)))
_QWEN = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj")


class Facts(Fields):
    """The description of a network in a GGUF: names are those of its metadata, without the
    architecture's before them.
    """

    def __init__(self, file: GgufFile) -> None:
        """Takes the architecture's values."""
        self.file, self.where = file, str(file.file)
        self.architecture = Fields(file, self.where).text("general.architecture", "unnamed")
        prefix = f"{self.architecture}."
        own = {key.removeprefix(prefix): file[key] for key in file if key.startswith(prefix)}
        for key in _BY_LAYER:
            if isinstance(value := own.get(key), list) and value:
                own[key] = value[0]
        super().__init__(own, f"{self.where}: {self.architecture[:40]}")

    def whole(self, key: str, default: int = 0) -> int:
        """A whole number, 0 or positive."""
        return super().whole(key, default) if self.has(key) else default

    def size(self, tensor: str, dimension: int) -> int:
        """Of a tensor of the first layer that has it. Raises `LoadError` if none has."""
        for name, place in self.file.tensors.items():
            if name.startswith("blk.") and name.endswith(f".{tensor}"):
                return place.shape[dimension] if dimension < len(place.shape) else 1
        raise LoadError(f"{self.where} lacks the tensor blk.0.{tensor}")

    @property
    def layers(self) -> int:
        """Those that a text goes through; others, that predict several tokens, stand behind."""
        found = self.count("block_count") - self.whole("nextn_predict_layers")
        if not 0 < found <= len(self.file.tensors):
            raise LoadError(f"{self.where}: 'block_count' is not the number of its layers")
        return found

    @property
    def head_dim(self) -> int:
        """Numbers of a head. Raises `LoadError` unless it fits the tensors."""
        heads = self.count("attention.head_count")
        if self.has("attention.kv_lora_rank"):  # of keys, the part that turns is all that is said
            if self.size("attn_output.weight", -1) != heads * self.of_head("value"):
                raise LoadError(f"{self.where}: its heads do not fit its tensors")
            return self.count("rope.dimension_count")
        if self.has(own := "attention.key_length_swa"):
            found, values = self.count(own), self.count("attention.value_length_swa")
        else:
            found = self.count("attention.key_length", self.count("embedding_length") // heads)
            values = self.count("attention.value_length", found)
        if found != values:
            raise LoadError(
                f"{self.where}: heads whose keys and values differ in size are not supported in a"
                " GGUF; take the model's safetensors"
            )
        if self.size("attn_output.weight", -1) != heads * found:
            raise LoadError(f"{self.where}: {heads} heads of {found} do not fit its tensors")
        return found

    def of_head(self, which: str) -> int:
        """Numbers of a head's key or value where a file has latents; older ones have no others."""
        name = f"attention.{which}_length"
        return self.count(f"{name}_mla" if self.has(f"{name}_mla") else name)

    @property
    def experts(self) -> int:
        """How many there are in a layer."""
        found = self.count("expert_count")
        if self.size(GATES, 0) != found or found * self.layers > MAX_EXPERTS:
            raise LoadError(f"{self.where}: 'expert_count' does not fit its tensors")
        return found

    def of_layer(self, key: str, number: int) -> int:
        """A count that the file has for each layer, or once for all."""
        found = self.file.get(f"{self.architecture}.{key}")
        one = found[number] if isinstance(found, list) and number < len(found) else found
        return Fields({key: one}, self.where).count(key)

    def rope(self) -> dict[str, Any]:
        """How positions turn keys."""
        base: dict[str, Any] = {"rope_theta": self.number("rope.freq_base", 10_000.0)}
        kind = self.text("rope.scaling.type", "none")
        length = self.count("context_length")
        original = self.count("rope.scaling.original_context_length", length)
        if FACTORS in self.file.tensors or LONG in self.file.tensors:
            names = [FACTORS] * 2 if FACTORS in self.file.tensors else [SHORT, LONG]
            near, far = (self.file.numbers(name).tolist() for name in names)
            return base | {
                "rope_type": "longrope",
                "short_factor": near,
                "long_factor": far,
                "attention_factor": self.number("rope.scaling.attn_factor", 1.0),
                "original_max_position_embeddings": original,
            }
        if kind == "none":
            return base | {"rope_type": "default"}
        if kind not in ("linear", "yarn"):
            raise LoadError(
                f"{self.where}: rope scaling {reprlib.repr(kind)} is not supported in a GGUF"
            )
        factor = self.number("rope.scaling.factor", 1.0)
        scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = original
            scaling["attention_factor"] = self.number("rope.scaling.attn_factor", 1.0) * (
                0.1 * math.log(max(factor, 1.0)) + 1.0
            )
        return base | scaling


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of llama.cpp."""

    architecture: str  # in config.json
    more: Callable[[Facts], dict[str, Any]] = lambda _: {}  # what else config.json holds
    # Of a layer's modules, beside the usual ones, or of tensors with what the file has behind their
    # point.
    names: Mapping[str, str] = field(default_factory=dict)
    # Rows of queries and keys are in pairs that turn together, where a checkpoint has halves of
    # heads.
    neighbours: bool = False
    norm_offset: float = 0.0  # what has been added to the weights of norms
    # Names of an expert's gate, up and down; up is None if it stands behind the gate. None where a
    # checkpoint has all of a layer's experts as one tensor, too.
    experts: tuple[str, str | None, str] | None = _QWEN
    partial: bool = False  # a part of each head may turn
    windows: bool = False  # layers may slide
    # Value heads of delta nets stand in turns of key heads, where a checkpoint has those of one key
    # head together.
    tiled: bool = False
    joined: bool = False  # a checkpoint has a delta net's products as one

    def tensor(self, module: str, part: str) -> str:
        """The name in a checkpoint of a weight, bias or scale of a layer's module."""
        if (alone := _ALONE.get(module) or self.names.get(f"{module}.{part}")) is not None:
            return alone
        return f"{self.names.get(module) or _NAMES.get(module, module)}.{part}"

    def config(self, facts: Facts) -> dict[str, Any]:
        """The content of config.json but for what it says of tokens. Raises `LoadError` for what is
        damaged or not supported.
        """
        tensors = facts.file.tensors
        if "token_embd.weight" not in tensors:
            raise LoadError(f"{facts.where} lacks the tensor token_embd.weight")
        embedding = tensors["token_embd.weight"]
        head_dim = facts.head_dim
        turning = facts.count("rope.dimension_count", head_dim)
        window = facts.whole("attention.sliding_window")
        if (turning != head_dim and not self.partial) or (window and not self.windows):
            raise LoadError(
                f"{facts.where}: sliding windows, and heads of which a part turns, are not"
                f" supported in a GGUF of {facts.architecture!r}; take the model's safetensors"
            )
        rope, plain = facts.rope(), facts.number("attention.layer_norm_epsilon", 1e-6)
        epsilon = facts.number("attention.layer_norm_rms_epsilon", plain)
        if self.partial:
            rope["partial_rotary_factor"] = turning / head_dim
        heads = facts.count("attention.head_count")
        return {
            "architectures": [self.architecture],
            "dtype": {"F32": "float32", "F16": "float16"}.get(embedding.kind.name, "bfloat16"),
            "vocab_size": embedding.shape[0],
            "hidden_size": facts.count("embedding_length"),
            "intermediate_size": facts.count("feed_forward_length", 1),
            "num_hidden_layers": facts.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": facts.count("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": facts.count("context_length"),
            **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_epsilon"), epsilon),
            "rope_parameters": rope,
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "tie_word_embeddings": "output.weight" not in tensors,
            "sliding_window": window or None,
            **self.more(facts),
        }


def own_words(text: str, file: str) -> str:
    """A message about a config.json that was made of a GGUF, in the words of that file."""
    named = _KEY.sub(lambda key: _KEYS[key[0]], text)
    return named.replace("config.json", f"{file}, metadata")


def family_of(facts: Facts) -> Family:
    """The family of a GGUF. Raises `LoadError` if it is not supported."""
    name = facts.architecture
    if name == "llama" and facts.whole("expert_count"):
        return _MIXTRAL
    if name == "deepseek2" and facts.whole("expert_gating_func") != SIGMOID:
        return _DEEPSEEK2
    if name not in FAMILIES:
        raise LoadError(
            f"{facts.where}: a GGUF of the architecture {reprlib.repr(name)} is not supported"
            f" (supported: {', '.join(FAMILIES)}); take the model's safetensors"
        )
    return FAMILIES[name]


def _mixture(facts: Facts) -> dict[str, Any]:
    return {
        "num_local_experts": facts.experts,
        "num_experts_per_tok": facts.count("expert_used_count"),
        "intermediate_size": facts.size(GATES, 1),
    }


def _qwen2_moe(facts: Facts) -> dict[str, Any]:
    return _qwen3_moe(facts) | {
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": facts.size("ffn_gate_shexp.weight", 0),
    }


def _qwen3_moe(facts: Facts) -> dict[str, Any]:
    return {
        "num_experts": facts.experts,
        "num_experts_per_tok": facts.count("expert_used_count"),
        "moe_intermediate_size": facts.size(GATES, 1),
        "norm_topk_prob": True,
    }


def _routed(facts: Facts) -> dict[str, Any]:
    return {
        "n_routed_experts": facts.experts,
        "num_experts_per_tok": facts.count("expert_used_count"),
        "moe_intermediate_size": facts.size(GATES, 1),
        "n_shared_experts": facts.count("expert_shared_count", 1),
        "first_k_dense_replace": facts.whole("leading_dense_block_count"),
        "routed_scaling_factor": facts.number("expert_weights_scale", 1.0),
        "n_group": facts.count("expert_group_count", 1),
        "topk_group": facts.count("expert_group_used_count", 1),
    }


def _glm4_moe(facts: Facts) -> dict[str, Any]:
    return _routed(facts) | {
        "norm_topk_prob": facts.flag("expert_weights_norm", True),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in facts.file.tensors,
    }


def _deepseek(facts: Facts) -> dict[str, Any]:
    turning, rope, routed = facts.head_dim, facts.rope(), _routed(facts)
    if stretched := 10 * facts.number("rope.scaling.yarn_log_multiplier", 0.0):
        del rope["attention_factor"]  # follows from these
        rope |= {"mscale": stretched, "mscale_all_dim": stretched}
    return routed | {
        "norm_topk_prob": facts.flag("expert_weights_norm", False),
        "topk_method": "group_limited_greedy" if routed["n_group"] > 1 else "greedy",
        "num_key_value_heads": facts.count("attention.head_count"),
        "q_lora_rank": facts.optional_count("attention.q_lora_rank", None),
        "kv_lora_rank": facts.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": turning,
        "qk_nope_head_dim": facts.of_head("key") - turning,
        "v_head_dim": facts.of_head("value"),
        "rope_parameters": rope,
    }


def _delta_nets(facts: Facts) -> dict[str, Any]:
    values = facts.count("ssm.time_step_rank")
    return {
        "linear_num_key_heads": facts.count("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_key_head_dim": facts.count("ssm.state_size"),
        "linear_value_head_dim": facts.count("ssm.inner_size") // values,
        "linear_conv_kernel_dim": facts.count("ssm.conv_kernel"),
        "full_attention_interval": facts.count("full_attention_interval", 4),
    }


def _delta_nets_moe(facts: Facts) -> dict[str, Any]:
    return _delta_nets(facts) | _qwen2_moe(facts) | {"norm_topk_prob": True}


def _granite(facts: Facts) -> dict[str, Any]:
    return {
        "attention_multiplier": facts.number("attention.scale", facts.head_dim**-0.5),
        "embedding_multiplier": facts.number("embedding_scale", 1.0),
        "residual_multiplier": facts.number("residual_scale", 1.0),
        "logits_scaling": facts.number("logit_scale", 1.0),
    }


def _gemma(facts: Facts) -> dict[str, Any]:
    return {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}


def _gemma2(facts: Facts) -> dict[str, Any]:
    return _gemma(facts) | {
        "query_pre_attn_scalar": _score_scale(facts, 46),
        "sliding_window": facts.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": facts.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.number("final_logit_softcapping", 30.0),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    local = facts.number("rope.freq_base_swa", 10_000.0)
    return _gemma(facts) | {
        "query_pre_attn_scalar": _score_scale(facts, 62),
        "final_logit_softcapping": facts.optional_number("final_logit_softcapping", None),
        "sliding_window_pattern": facts.count("attention.sliding_window_pattern", 6),
        "rope_parameters": {
            "full_attention": facts.rope(),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _gemma4(facts: Facts) -> dict[str, Any]:
    slides = facts.items("attention.sliding_window_pattern") or []
    layers, tensors = facts.layers, facts.file.tensors
    if len(slides) != layers or all(slides):
        raise LoadError(f"{facts.where}: 'attention.sliding_window_pattern' is not of its layers")
    full, local = slides.index(False), facts.number("rope.freq_base_swa", 10_000.0)
    factors = facts.file.numbers(FACTORS).tolist() if FACTORS in tensors else [1.0]
    found = _gemma(facts) | {
        "layer_types": [f"{'sliding' if each else 'full'}_attention" for each in slides],
        "sliding_window": facts.count("attention.sliding_window"),
        "global_head_dim": facts.count("attention.key_length"),
        "num_global_key_value_heads": facts.of_layer("attention.head_count_kv", full),
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in tensors,
        "num_kv_shared_layers": facts.whole("attention.shared_kv_layers"),
        "use_double_wide_mlp": facts.of_layer("feed_forward_length", layers - 1)
        != facts.count("feed_forward_length"),
        "hidden_size_per_layer_input": facts.whole("embedding_length_per_layer_input"),
        "final_logit_softcapping": facts.optional_number("final_logit_softcapping", None),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": facts.number("rope.freq_base", 10_000.0),
                "partial_rotary_factor": sum(f < STILL for f in factors) / len(factors),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }
    if (table := tensors.get("per_layer_token_embd.weight")) is not None:
        found["vocab_size_per_layer_input"] = table.shape[0]
    if facts.whole("expert_count"):
        found |= {
            "enable_moe_block": True,
            "num_experts": facts.count("expert_count"),
            "top_k_experts": facts.count("expert_used_count"),
            "moe_intermediate_size": facts.count("expert_feed_forward_length"),
        }
    return found


def _score_scale(facts: Facts, largest: int) -> float:
    """The number by whose root scores are divided: the largest model, which no key of the file
    tells, is known by its number of layers.
    """
    if facts.layers == largest:
        return facts.count("embedding_length") / facts.count("attention.head_count")
    return facts.head_dim


def _plain_biases(facts: Facts) -> dict[str, Any]:
    biased = "blk.0.attn_q.bias" in facts.file.tensors
    normed = "blk.0.attn_q_norm.weight" in facts.file.tensors
    return {"use_bias": biased, "use_qkv_bias": biased, "qk_layernorm": normed}


def _stablelm(facts: Facts) -> dict[str, Any]:
    parallel = "blk.0.ffn_norm.weight" not in facts.file.tensors
    return _plain_biases(facts) | {"use_parallel_residual": parallel}


def _cohere(facts: Facts) -> dict[str, Any]:
    normed = "blk.0.attn_q_norm.weight" in facts.file.tensors
    return {"use_qk_norm": normed, "logit_scale": facts.number("logit_scale", 1.0)}


def _gpt_oss(facts: Facts) -> dict[str, Any]:
    rope = facts.rope()
    return _mixture(facts) | {"rope_parameters": {**rope, "truncate": False}}


_EXPERTS = "block_sparse_moe"
_SHARED = ("gate", "up", "down")
_QWEN_SHARED = {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in _SHARED} | {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate"
}
_OTHERS_SHARED = {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in _SHARED}
_DELTA_NETS = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_in": "linear_attn.in_proj_qkvz",  # in older files
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}
_GEMMA4 = {
    **_BOTH_SIDES,
    "layer_output_scale.weight": "layer_scalar",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
}
_NORMED = {"attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"}
_HYBRID: dict[str, Any] = {"norm_offset": 1.0, "partial": True}
_LATENTS = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    **_OTHERS_SHARED,
}
FAMILIES = {
    "llama": Family("LlamaForCausalLM", neighbours=True),  # and Mistral, which says so
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "qwen2moe": Family("Qwen2MoeForCausalLM", _qwen2_moe, _QWEN_SHARED),
    "qwen3moe": Family("Qwen3MoeForCausalLM", _qwen3_moe),
    "qwen3next": Family(
        "Qwen3NextForCausalLM",
        _delta_nets_moe,
        _DELTA_NETS | _QWEN_SHARED,
        joined=True,
        **_HYBRID,
    ),
    "qwen35": Family("Qwen3_5ForCausalLM", _delta_nets, _DELTA_NETS, tiled=True, **_HYBRID),
    "qwen35moe": Family(
        "Qwen3_5MoeForCausalLM",
        _delta_nets_moe,
        _DELTA_NETS | _QWEN_SHARED,
        tiled=True,
        **_HYBRID,
    ),
    "qwen3vl": Family("Qwen3ForCausalLM"),  # the text; images are in another file
    "qwen3vlmoe": Family("Qwen3MoeForCausalLM", _qwen3_moe),
    "deepseek2": Family("DeepseekV3ForCausalLM", _deepseek, _LATENTS),
    "gemma": Family("GemmaForCausalLM", _gemma, norm_offset=1.0),
    "gemma2": Family("Gemma2ForCausalLM", _gemma2, _BOTH_SIDES, norm_offset=1.0, windows=True),
    "gemma3": Family("Gemma3ForCausalLM", _gemma3, _BOTH_SIDES, norm_offset=1.0, windows=True),
    "gemma4": Family(
        "Gemma4ForCausalLM", _gemma4, _GEMMA4, experts=None, partial=True, windows=True
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        partial=True,
        windows=True,
    ),
    "phi2": Family(
        "PhiForCausalLM",
        _plain_biases,
        {
            **_NORMED,
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
            "output_norm": "model.final_layernorm",
        },
        partial=True,
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        _plain_biases,
        {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    "stablelm": Family("StableLmForCausalLM", _stablelm, _NORMED, partial=True),
    "command-r": Family("CohereForCausalLM", _cohere),
    "cohere2": Family("Cohere2ForCausalLM", _cohere, windows=True),
    "smollm3": Family("SmolLM3ForCausalLM", neighbours=True),
    "olmo2": Family("Olmo2ForCausalLM", names=_BOTH_SIDES),
    "granite": Family("GraniteForCausalLM", _granite, neighbours=True),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        lambda facts: _granite(facts) | _mixture(facts),
        {"ffn_gate_inp": "block_sparse_moe.router.layer"},
        neighbours=True,
        experts=(f"{_EXPERTS}.input_linear.{{}}", None, f"{_EXPERTS}.output_linear.{{}}"),
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        names={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        partial=True,
    ),
    "glm4moe": Family(
        "Glm4MoeForCausalLM",
        _glm4_moe,
        _OTHERS_SHARED | {"post_attention_norm": "post_attention_layernorm"},
        partial=True,
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        _gpt_oss,
        {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
        experts=("mlp.experts.gate_up_proj.{}", None, "mlp.experts.down_proj.{}"),
        windows=True,
    ),
}
_DEEPSEEK2 = Family("DeepseekV2ForCausalLM", _deepseek, _LATENTS)
_MIXTRAL = Family(
    "MixtralForCausalLM",
    _mixture,
    {"ffn_gate_inp": "block_sparse_moe.gate"},
    neighbours=True,
    experts=(
        f"{_EXPERTS}.experts.{{}}.w1",
        f"{_EXPERTS}.experts.{{}}.w3",
        f"{_EXPERTS}.experts.{{}}.w2",
    ),
)
