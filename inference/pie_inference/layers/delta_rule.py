"""The gated delta rule (Yang et al. 2025): a state that forgets, and corrects what it knows."""

from __future__ import annotations

import torch

CHUNK = 64  # tokens whose corrections are one triangular system


def gated_delta_rule(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    decays: torch.Tensor,
    strengths: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What tokens read from a state, each after it has written to it.

    Token `t` writes `S = exp(d) S + k uᵀ` with `u = s (v - exp(d) Sᵀ k)`: of its value, that which
    the state does not give for its key already. Then it reads `Sᵀ q`. A token of decay 0 and
    strength 0 writes nothing.

    Args:
        queries: `[batch, heads, tokens, key_dim]`, float32, as are all others.
        keys: the same shape.
        values: `[batch, heads, tokens, value_dim]`.
        decays: logarithms `d`, at most 0, `[batch, heads, tokens]`.
        strengths: `s`, `[batch, heads, tokens]`.
        state: `S` before the first, `[batch, heads, key_dim, value_dim]`.

    Returns:
        What is read, in the shape of the values, and the state after the last.
    """
    read = []
    for first in range(0, keys.shape[2], CHUNK):
        part = slice(first, first + CHUNK)
        q, k, v = queries[:, :, part], keys[:, :, part], values[:, :, part]
        strength = strengths[:, :, part].unsqueeze(-1)
        since = decays[:, :, part].cumsum(-1)  # of all tokens of the chunk so far
        faded = since.exp().unsqueeze(-1)
        # [.., i, j] what is left, when token i comes, of what token j has written
        left = (since.unsqueeze(-1) - since.unsqueeze(-2)).tril().exp().tril()
        # Each correction depends on those before it in the chunk: u + (s left k·k) u = s (v - old)
        known = strength * left * (k @ k.mT)
        wanted = strength * (v - faded * (k @ state))
        corrections = torch.linalg.solve_triangular(known, wanted, upper=False, unitriangular=True)
        read.append(faded * (q @ state) + (left * (q @ k.mT)) @ corrections)
        kept = (since[..., -1:] - since).exp().unsqueeze(-1)
        state = faded[:, :, -1:] * state + (k * kept).mT @ corrections
    return torch.cat(read, 2), state
