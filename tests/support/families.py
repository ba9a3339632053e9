"""Small configurations of every family that is served, as transformers has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import transformers

from support.checkpoints import make_checkpoint, small_tokenizer

WINDOW = 13  # odd, and less than two pages
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 1.5, 3.0, 9.0],
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.5,
}
LOCAL = {"sliding_window": WINDOW}
LOCAL_QWEN = {**LOCAL, "use_sliding_window": True}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SIX_EXPERTS = {
    **EXPERTS,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 40}
LATENTS = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
STATES = {
    "initializer_range": 0.1,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["full_attention", *["linear_attention"] * 3],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
GEMMA4 = {**LOCAL, "head_dim": 16, "global_head_dim": 32}

Family: TypeAlias = tuple[str, dict[str, Any]]
"""The configuration's class, but for `Config`, and its options."""

FAMILIES: dict[str, Family] = {
    "llama": ("Llama", {"head_dim": 16}),
    "llama-yarn": ("Llama", {"head_dim": 32, "rope_parameters": YARN}),
    "mistral": ("Mistral", LOCAL),
    "mistral-full": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {**LOCAL_QWEN, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma2": ("Gemma2", {**LOCAL, **CAPS, "head_dim": 32, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3Text",
        {
            **LOCAL,
            "num_hidden_layers": 4,
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "linear",
                    "factor": 8.0,
                    "rope_theta": 1_000_000.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", {**SIX_EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "qwen3-moe-window": (
        "Qwen3Moe",
        {**EXPERTS, **LOCAL_QWEN, "head_dim": 32, "decoder_sparse_step": 2},
    ),
}

# Variants of what those above have: one test holds each to transformers.
VARIANTS: dict[str, Family] = {
    "llama-long": (
        "Llama",
        {
            "hidden_act": "relu",
            "head_dim": 8,
            "rope_parameters": {**LONG, "partial_rotary_factor": 1.0, "factor": 3.0},
        },
    ),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "phi3": ("Phi3", LOCAL),
    "phi3-long": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 256}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "smollm3-window": ("SmolLM3", {**LOCAL_QWEN, "no_rope_layers": [1, 0]}),
    "granite": ("Granite", GRANITE),
    "granite-moe": ("GraniteMoe", {**GRANITE, "num_local_experts": 5, "num_experts_per_tok": 3}),
    "gptoss": (
        "GptOss",
        {
            **LOCAL,
            "head_dim": 32,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "swiglu_limit": 1.5,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    # Every head has a key of its own, made from the latent.
    "deepseekv3": (
        "DeepseekV3",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 40,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 24,
            "v_head_dim": 20,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 48,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "deepseekv3-plain": (
        "DeepseekV3",
        {
            **LATENTS,
            **ROUTED,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "attention_bias": True,
        },
    ),
    "qwen3_5": ("Qwen3_5Text", {**STATES, "linear_conv_kernel_dim": 3}),
    "qwen3_5moe": ("Qwen3_5MoeText", {**STATES, **EXPERTS, **SHARED}),
    "qwen3next": (
        "Qwen3Next",
        {
            **STATES,
            **EXPERTS,
            **SHARED,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 24,
            "mlp_only_layers": [0],
        },
    ),
    "glm": ("Glm", {"head_dim": 16, "attention_bias": True}),
    "glm4": ("Glm4", {"head_dim": 32}),
    "glm4-moe": (
        "Glm4Moe",
        {
            **ROUTED,
            "head_dim": 32,
            "use_qk_norm": True,
            "attention_bias": True,
            "first_k_dense_replace": 1,
        },
    ),
    "gemma": ("Gemma", {"head_dim": 32}),
    "qwen2-moe-plain": (
        "Qwen2Moe",
        {**SHARED, "num_experts": 4, "moe_intermediate_size": 48},
    ),
    "qwen2-moe": ("Qwen2Moe", {**SHARED, **SIX_EXPERTS, **LOCAL_QWEN}),
}

# By transformers' code.
OTHERS: dict[str, Family] = {
    "phi": ("Phi", {}),
    "phi-normed": ("Phi", {"qk_layernorm": True}),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
    "cohere-normed": ("Cohere", {"use_qk_norm": True, "attention_bias": True}),
    "cohere2": ("Cohere2", {**LOCAL, "num_hidden_layers": 4}),
    "gemma4": (
        "Gemma4Text",
        {
            **GEMMA4,
            "num_hidden_layers": 5,
            "layer_types": [*["sliding_attention", "full_attention"] * 2, "full_attention"],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": len(small_tokenizer()),
        },
    ),
    "gemma4-moe": (
        "Gemma4Text",
        {
            **GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 48,
            "final_logit_softcapping": 3.0,
        },
    ),
    "starcoder2": ("Starcoder2", LOCAL),
    "starcoder2-plain": ("Starcoder2", {"use_bias": False}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm-parallel": ("StableLm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "olmo2": ("Olmo2", {}),
    "deepseekv2": (
        "DeepseekV2",
        {
            **LATENTS,
            **ROUTED,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "v_head_dim": 12,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
}


def make_family(
    folder: Path, name: str, *, dtype: str = "float32", seed: int = 1, shards: int = 1, **more: Any
) -> Path:
    """Writes a small random checkpoint of a family into a folder, and returns the folder.

    Args:
        folder: where; made if it does not exist. One that holds a checkpoint is left as it is.
        name: in `FAMILIES`, `VARIANTS` or `OTHERS`.
        dtype: of the tensors.
        seed: of the weights. With some a router is nearly undecided, and rounding decides.
        shards: about how many safetensors files.
        more: options of the configuration.
    """
    tokenizer = small_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        "initializer_range": 0.2,  # larger than usual: greedy texts vary, logits lie apart
    }
    kind, told = (FAMILIES | VARIANTS | OTHERS)[name]
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **told, **more})
    return make_checkpoint(folder, config, dtype=dtype, seed=seed, shards=shards)
