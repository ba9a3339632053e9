"""Sizes of a model, and how its keys turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pie_inference.attention import AttentionOptions
from pie_inference.layers.rope import Rope


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """Sizes of the layers that have a state in the place of keys and values."""

    layers: int
    width: int  # numbers of a slot in each
    history: int  # tokens that one looks back at, beside its state
    heads: int
    key_dim: int
    value_dim: int

    @property
    def state_bytes(self) -> int:
        """Of the states of a sequence, all layers together."""
        return self.layers * self.heads * self.key_dim * self.value_dim * 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model, from its config.json."""

    attention: tuple[AttentionOptions, ...]  # each layer's that has keys and values
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int  # positions 0 .. max_position - 1
    recurrent: RecurrentShape | None = None
    latent: bool = False  # keys are the values, too: a slot holds them once
    # Layers after which features of images are added; None if images have no rows and columns.
    image_layers: int | None = None

    @property
    def layers(self) -> int:
        """How many layers have keys and values."""
        return len(self.attention)

    @property
    def slot_numbers(self) -> int:
        """Numbers that a token's slot holds in all layers."""
        found = self.layers * (1 if self.latent else 2) * self.kv_heads * self.head_dim
        if self.recurrent is not None:
            found += self.recurrent.layers * self.recurrent.width
        return found

    @property
    def sinks(self) -> bool:
        """True if queries see a sink, in some layers."""
        return any(options.sinks for options in self.attention)


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotation of one layer's keys."""

    frequencies: torch.Tensor  # [planes] float32, radians a position
    interleaved: bool

    def turned(self, keys: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Keys `[n, heads, head_dim]`, float32, so many positions `[n, 1]` further on."""
        angles = distances * self.frequencies.to(keys.device)
        return Rope.turned(keys, angles, self.interleaved)
