"""The interface between models and attention backends."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from pie_inference.attention.sequences import Sequences


class PreparedAttention(ABC):
    """Attention of one forward batch, ready to run in every layer."""

    @abstractmethod
    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """Stores keys and values `[t, 2 * kv_heads * head_dim]` of the inputs in their slots."""

    @abstractmethod
    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attends with queries `[t, heads, head_dim]`, after `store` of the same layer.

        Returns:
            `[t, heads * head_dim]`; zeros for an input that nothing is visible to.
        """


class AttentionBackend(ABC):
    """A way to compute attention over one KV cache."""

    @abstractmethod
    def prepare(self, sequences: Sequences) -> PreparedAttention:
        """Does once for a forward what all layers share."""
