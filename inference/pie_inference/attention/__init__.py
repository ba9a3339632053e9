"""Attention over the paged KV pool: what is attended to, and the backends that compute it.

Here is the interface between models and backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pie_inference.attention.recurrent import PreparedStates
from pie_inference.attention.sequences import Sequences
from pie_inference.layers.step import LayerChange


@dataclass(frozen=True, slots=True)
class Chunk:
    """A window that does not slide: an input sees keys of its own block of `size` positions."""

    size: int


Window = int | Chunk


def outside(window: Window, own: Any, keys: Any) -> Any:
    """Which keys a window hides, by their positions and those of the inputs, which broadcast."""
    if isinstance(window, Chunk):
        return keys // window.size != own // window.size
    return keys <= own - window


@dataclass(frozen=True)
class AttentionOptions:
    """A layer's attention beyond the plain scaled dot product.

    A window counts positions and looks back: of what the rules or a mask let an input see, it keeps
    the keys whose position is greater than the input's less `window`, or those of its `Chunk`.
    """

    scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    softcap: float | None = None  # scores `s` become `softcap * tanh(s / softcap)`
    window: Window | None = None  # in positions; None: all of them
    sinks: bool = False  # whether its queries also see a sink: see `PreparedAttention.attend`

    def scale_of(self, head_dim: int) -> float:
        """The factor of scores, of heads of so many numbers."""
        return head_dim**-0.5 if self.scale is None else self.scale

    @property
    def sliding(self) -> int | None:
        """The window, where there are no chunks: kernels know none."""
        assert not isinstance(self.window, Chunk)
        return self.window

    @cached_property
    def scored(self) -> bool:
        """True if it does with scores what PyTorch's kernels do not."""
        return self.softcap is not None or self.sinks


class PreparedAttention(ABC):
    """Attention of one forward batch, ready to run in every layer."""

    # What programs make of what layers are given; None without any.
    changes: LayerChange | None = None

    # What layers with a state read and write; None for a model without them.
    states: PreparedStates | None = None

    @abstractmethod
    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """Stores the inputs' keys and values, `[t, 2 * kv_heads * head_dim]`, or latents."""

    @abstractmethod
    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attends with queries `[t, heads, head_dim]`, after `store` of the same layer.

        Sinks `[heads]`, of a layer whose options have them, are the scores of a key that every
        query sees, and whose value is zero (Xiao et al. 2024).

        Returns:
            `[t, heads * head_dim]`; zeros for an input that nothing is visible to.
        """


class AttentionBackend(ABC):
    """A way to compute attention over one KV cache, each layer with its own options."""

    @abstractmethod
    def prepare(self, sequences: Sequences) -> PreparedAttention:
        """Does once for a forward what all layers share."""
