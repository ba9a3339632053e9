"""Gemma 1 (Mesnard et al. 2024): Gemma 2 without caps, windows, and norms after the blocks."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.models.gemma2 import as_gemma, gemma_activation
from pie_inference.models.spec import Config, DecoderSpec, NormNames, decoder_spec


def gemma(config: Config) -> DecoderSpec:
    """Scaled embeddings, GeGLU, weights of norms that are less one."""
    spec = decoder_spec(
        config,
        "GemmaForCausalLM",
        head_dim=256,
        tied=True,
        activation=gemma_activation(config),
    )
    return replace(as_gemma(config, spec), norms=NormNames())
