"""A model as the worker sees it, whatever computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from pie_inference.attention import PreparedAttention
from pie_inference.layers.feed_forward import Activation
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.lora import AdapterRows, EmbeddingSite, LinearSite
from pie_inference.memory.embeds import ImageInputs
from pie_inference.models.shape import ModelShape, Turn
from pie_inference.models.weights import Place

if TYPE_CHECKING:
    from pie_inference.models.by_transformers.images import GeneralImages


class Network(ABC):
    """A transformer whose KV cache and attention are given from outside."""

    shape: ModelShape
    activation: Activation = "silu"  # of its feed-forward blocks, where kernels are made for it
    images: GeneralImages | None = None  # None if it reads text only
    between_layers: Callable[[], None] | None = None  # called after each layer of a forward
    few_bits: Sequence[int] = ()  # of weights that are kept so
    sites: Mapping[
        str, LinearSite | EmbeddingSite
    ] = {}  # what adapters may change, by name in a checkpoint
    places: Mapping[str, Place] = {}  # where tensors are that may be replaced, by such a name
    tied = False  # its head is its embedding
    no_tokens: torch.Tensor | None = None  # ids of padding, which are never chosen
    graphable = False  # see `Decoder.graphable`

    def turns(self) -> list[Turn | None] | None:
        """How keys turn from position to position in each layer, None where they do not; None if
        they can't be turned to other positions.
        """
        return None

    def use(self, kernels: Kernels) -> None:  # noqa: B027 - one may have no use for them
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
    def logits(
        self, hidden: torch.Tensor, *, every: bool = False, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """Logits `[n, vocab_size]` of hidden states that `forward` returned, in the model's dtype,
        or in float32 on a CPU and if they are capped; minus infinity in `no_tokens`, unless of
        `every` row. Adapters may change the head.
        """
