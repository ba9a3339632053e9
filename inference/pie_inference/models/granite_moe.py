"""Granite with a mixture of experts (IBM 2024), in every layer."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.router import Routing
from pie_inference.models.granite import granite
from pie_inference.models.spec import Config, DecoderSpec, StackedNames, stacked_experts


def granite_moe(config: Config) -> DecoderSpec:
    """Granite's factors; the weights of the chosen experts add up to one."""
    fields = Fields(config)
    block = "block_sparse_moe"
    experts = stacked_experts(
        StackedNames(f"{block}.input_linear.weight", f"{block}.output_linear.weight"),
        f"{block}.router.layer",
        experts=fields.count("num_local_experts", 8),
        inner=fields.count("intermediate_size"),
        routing=Routing(fields.count("num_experts_per_tok", 2), normalized=True),
    )
    spec = granite(config)
    return replace(
        spec,
        shape=replace(spec.shape, architecture="GraniteMoeForCausalLM"),
        feed_forward=(experts,) * spec.shape.layers,
    )
