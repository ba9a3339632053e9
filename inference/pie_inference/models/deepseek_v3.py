"""DeepSeek V3 (2024): latent attention, small experts, and some that all tokens go through."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.experts import Routing
from pie_inference.models.spec import (
    Block,
    Config,
    DecoderSpec,
    ExpertsSpec,
    LatentSpec,
    MlpSpec,
    decoder_spec,
)

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def deepseek_v3(config: Config) -> DecoderSpec:
    """The first layers are dense."""
    fields = Fields(config)
    heads = fields.count("num_attention_heads")
    latent = LatentSpec(
        query_rank=fields.optional_count("q_lora_rank", 1536),
        rank=fields.count("kv_lora_rank", 512),
        turned=fields.count("qk_rope_head_dim", 64),
        plain=fields.count("qk_nope_head_dim", 128),
        value=fields.count("v_head_dim", 128),
        bias=fields.flag("attention_bias", False),
    )
    spec = decoder_spec(
        # The part of a head that turns is all that the rope sees.
        {**config, "head_dim": latent.turned, "num_key_value_heads": heads},
        feed_forward=dense_then(sigmoid_experts(fields), fields),
        latent=latent,
        interleaved=fields.flag("rope_interleave", True),
        output_bias=latent.bias,
    )
    rope = spec.ropes[0]
    stretched = rope.number("mscale_all_dim", 0.0) if rope.kind != "default" else 0.0
    amplitude = 1.0
    if stretched and rope.number("factor") > 1:
        amplitude = 0.1 * stretched * math.log(rope.number("factor")) + 1.0
    scale = (latent.plain + latent.turned) ** -0.5 * amplitude**2
    attention = tuple(replace(option, scale=scale) for option in spec.shape.attention)
    head_dim = latent.rank + latent.turned
    shape = replace(spec.shape, attention=attention, kv_heads=1, head_dim=head_dim, latent=True)
    return replace(spec, shape=shape)


def dense_then(experts: ExpertsSpec, fields: Fields) -> list[Block]:
    """A dense block in each of the first `first_k_dense_replace` layers, experts in the others."""
    layers = fields.count("num_hidden_layers")
    first = fields.whole("first_k_dense_replace", 3)
    dense = MlpSpec(fields.count("intermediate_size"))
    return [dense if i < first else experts for i in range(layers)]


def sigmoid_experts(fields: Fields) -> ExpertsSpec:
    """Experts as DeepSeek V3 routes them: by sigmoids and a correction, within some groups."""
    inner = fields.count("moe_intermediate_size", 2048)
    shared = (f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down"))
    return ExpertsSpec(
        experts=fields.count("n_routed_experts", 256),
        inner=inner,
        routing=Routing(
            fields.count("num_experts_per_tok", 8),
            fields.flag("norm_topk_prob", True),
            sigmoid=True,
            corrected=True,
            groups=fields.count("n_group", 8),
            chosen_groups=fields.count("topk_group", 4),
            scale=fields.number("routed_scaling_factor", 2.5),
        ),
        shared=MlpSpec(inner * fields.count("n_shared_experts", 1), False, *shared),
        shared_gate=None,
    )


def without_prediction(config: Config) -> Callable[[str], str | None]:
    """Names without those of the layers behind the last: they predict several tokens at once."""
    layers = Fields(config).count("num_hidden_layers")

    def rename(name: str) -> str | None:
        found = _LAYER.match(name)
        return None if found and int(found[1]) >= layers else name

    return rename
