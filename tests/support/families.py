"""Small configurations of every family that is served, as transformers has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import (
    Cohere2Config,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    GlmConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

from support.checkpoints import make_checkpoint, small_tokenizer

WINDOW = 13  # odd, and less than two pages
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0}

LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 1.5, 3.0, 9.0],
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.5,
}


def _deepseek(**options: Any) -> DeepseekV3Config:
    """Every head has a key of its own, made from the latent."""
    return DeepseekV3Config(**{**options, "num_key_value_heads": options["num_attention_heads"]})


DELTA_NETS: dict[str, Any] = {
    "initializer_range": 0.1,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["full_attention", *["linear_attention"] * 3],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
SHARED_EXPERT: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
}
SCALED: dict[str, Any] = {  # as Granite
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
FAMILIES: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": functools.partial(LlamaConfig, head_dim=16),
    "llama-yarn": functools.partial(LlamaConfig, head_dim=32, rope_parameters=YARN),
    "mistral": functools.partial(MistralConfig, sliding_window=WINDOW),
    "mistral-full": functools.partial(MistralConfig, sliding_window=None, head_dim=32),
    "qwen2": Qwen2Config,
    "qwen2-window": functools.partial(
        Qwen2Config, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": functools.partial(Qwen3Config, head_dim=32),
    "gemma2": functools.partial(
        Gemma2Config,
        head_dim=32,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": functools.partial(
        Gemma3TextConfig,
        num_hidden_layers=4,
        head_dim=32,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "full_attention": LINEAR,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "mixtral": functools.partial(MixtralConfig, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": functools.partial(
        Qwen3MoeConfig,
        num_hidden_layers=3,
        head_dim=32,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        mlp_only_layers=[1],
        norm_topk_prob=True,
    ),
    "qwen3-moe-window": functools.partial(
        Qwen3MoeConfig,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=WINDOW,
    ),
}

# Variants of what those above have: one test holds each to transformers.
VARIANTS: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama-long": functools.partial(
        LlamaConfig,
        hidden_act="relu",
        head_dim=8,
        rope_parameters={**LONG, "partial_rotary_factor": 1.0, "factor": 3.0},
    ),
    "llama-biases": functools.partial(LlamaConfig, attention_bias=True, mlp_bias=True),
    "phi3": functools.partial(Phi3Config, sliding_window=WINDOW),
    "phi3-long": functools.partial(
        Phi3Config, rope_parameters=LONG, original_max_position_embeddings=256
    ),
    "smollm3": functools.partial(SmolLM3Config, num_hidden_layers=4, no_rope_layer_interval=2),
    "smollm3-window": functools.partial(
        SmolLM3Config, no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=WINDOW
    ),
    "granite": functools.partial(
        GraniteConfig,
        **SCALED,
    ),
    "granite-moe": functools.partial(
        GraniteMoeConfig,
        num_local_experts=5,
        num_experts_per_tok=3,
        **SCALED,
    ),
    "gptoss": functools.partial(
        GptOssConfig,
        head_dim=32,
        sliding_window=WINDOW,
        num_local_experts=5,
        num_experts_per_tok=2,
        swiglu_limit=1.5,
        rope_parameters={**YARN, "truncate": False},
    ),
    "deepseekv3": functools.partial(
        _deepseek,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        q_lora_rank=24,
        kv_lora_rank=40,
        qk_rope_head_dim=16,
        qk_nope_head_dim=24,
        v_head_dim=20,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        moe_intermediate_size=48,
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "deepseekv3-plain": functools.partial(
        _deepseek,
        q_lora_rank=None,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        n_shared_experts=2,
        first_k_dense_replace=0,
        moe_intermediate_size=32,
        rope_interleave=False,
        norm_topk_prob=False,
        attention_bias=True,
    ),
    "qwen3_5": functools.partial(
        Qwen3_5TextConfig,
        **DELTA_NETS,
        linear_conv_kernel_dim=3,
    ),
    "qwen3_5moe": functools.partial(
        Qwen3_5MoeTextConfig,
        **DELTA_NETS,
        **SHARED_EXPERT,
    ),
    "qwen3next": functools.partial(
        Qwen3NextConfig,
        **DELTA_NETS
        | {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 24,
        },
        **SHARED_EXPERT,
        mlp_only_layers=[0],
    ),
    "glm": functools.partial(GlmConfig, head_dim=16, attention_bias=True),
    "glm4": functools.partial(Glm4Config, head_dim=32),
    "glm4-moe": functools.partial(
        Glm4MoeConfig,
        head_dim=32,
        use_qk_norm=True,
        attention_bias=True,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
    "gemma": functools.partial(GemmaConfig, head_dim=32),
    "qwen2-moe-plain": functools.partial(
        Qwen2MoeConfig, num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=40
    ),
    "qwen2-moe": functools.partial(
        Qwen2MoeConfig,
        num_hidden_layers=3,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[1],
        use_sliding_window=True,
        sliding_window=WINDOW,
    ),
}

# By transformers' code.
OTHERS: dict[str, Callable[..., PreTrainedConfig]] = {
    "phi": PhiConfig,
    "phi-normed": functools.partial(PhiConfig, qk_layernorm=True),
    "cohere": functools.partial(CohereConfig, logit_scale=0.5),
    "cohere-normed": functools.partial(CohereConfig, use_qk_norm=True, attention_bias=True),
    "cohere2": functools.partial(Cohere2Config, num_hidden_layers=4, sliding_window=WINDOW),
    "gemma4": functools.partial(
        Gemma4TextConfig,
        num_hidden_layers=5,
        layer_types=[*["sliding_attention", "full_attention"] * 2, "full_attention"],
        sliding_window=WINDOW,
        head_dim=16,
        global_head_dim=32,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=len(small_tokenizer()),
    ),
    "gemma4-moe": functools.partial(
        Gemma4TextConfig,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        sliding_window=WINDOW,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=48,
        final_logit_softcapping=3.0,
    ),
    "starcoder2": functools.partial(Starcoder2Config, sliding_window=WINDOW),
    "starcoder2-plain": functools.partial(Starcoder2Config, use_bias=False),
    "stablelm": functools.partial(StableLmConfig, use_qkv_bias=True),
    "stablelm-parallel": functools.partial(
        StableLmConfig, qk_layernorm=True, use_parallel_residual=True
    ),
    "olmo2": Olmo2Config,
    "deepseekv2": functools.partial(
        DeepseekV2Config,
        num_hidden_layers=3,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        moe_intermediate_size=32,
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
    partial = (FAMILIES | VARIANTS | OTHERS)[name]
    told = partial.keywords if isinstance(partial, functools.partial) else {}
    config = partial(**{**sizes, **told, **more})
    return make_checkpoint(folder, config, dtype=dtype, seed=seed, shards=shards)
