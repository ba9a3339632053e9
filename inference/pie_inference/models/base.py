"""What the worker needs of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from pie_inference.attention.base import AttentionOptions, PreparedAttention
from pie_inference.layers.feed_forward import Activation
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.lora import AdapterRows, LinearSite
from pie_inference.layers.rope import Rope
from pie_inference.memory.embeds import ImageInputs
from pie_inference.vision.images import ImageEncoder


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
        """Whether queries see a sink, in some layers."""
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


class Model(ABC):
    """A transformer whose KV cache and attention are given from outside."""

    shape: ModelShape
    sites: Mapping[str, LinearSite] = {}  # what adapters may change, by name in a checkpoint
    images: ImageEncoder | None = None  # None if it reads text only
    activation: Activation = "silu"  # of its feed-forward blocks
    between_layers: Callable[[], None] | None = None  # called after each layer of a forward

    @property
    def graphable(self) -> bool:
        """Whether equally large forwards run the same kernels and never wait for the device."""
        return False

    def turns(self) -> list[Turn | None] | None:
        """How keys turn from position to position in each layer, None where they do not; None if
        they can't be turned to other positions.
        """
        return None

    def use(self, kernels: Kernels) -> None:  # noqa: B027 - a model may have no use for them
        """Computes with a device's kernels from now on."""

    @abstractmethod
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, hidden]` of tokens `[n]`, int64."""

    @abstractmethod
    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: PreparedAttention,
        outputs: torch.Tensor | None,
        adapters: AdapterRows | None = None,
        images: ImageInputs | None = None,
    ) -> torch.Tensor:
        """Runs the layers over inputs and stores their keys and values.

        Args:
            hidden: inputs `[t, hidden]`; overwritten by the layers.
            positions: `[t]`, int64.
            attention: what each input attends to, and where its key and value go.
            outputs: rows `[o]`, int64, whose result is wanted; all of them if None.
            adapters: of the inputs; none by default.
            images: what inputs have of images in rows and columns; none by default.

        Returns:
            Hidden states `[o, hidden]` after the final norm.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[n, vocab_size]` of hidden states that `forward` returned."""
