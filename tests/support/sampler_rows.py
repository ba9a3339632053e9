"""Samplers' parameters and logits as arrays, and random rows of them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from pie_inference.sampling.choose import Parameters


def parameters(
    rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 1,
    first_step: int = 0,
) -> Parameters:
    return Parameters(
        temperature=np.full(rows, temperature, np.float32),
        top_k=np.full(rows, top_k, np.int64),
        top_p=np.full(rows, top_p, np.float32),
        min_p=np.full(rows, min_p, np.float32),
        seeds=np.full(rows, seed, np.uint64),
        steps=np.arange(first_step, first_step + rows).astype(np.uint32),
    )


def join(parts: list[Parameters]) -> Parameters:
    fields = ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")
    return Parameters(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in fields})


def make_logits(vocabulary: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-38, 1e-3, 0.5, 1.0, 2.0, 1e4]),
        "top_k": st.sampled_from([0, 1, 2, 5, 39, 40, 41, 10**6]),
        "top_p": st.sampled_from([0.0, 1e-9, 0.3, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-9, 0.2, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "first_step": st.integers(0, 2**32 - 1),
    }
)
