"""A layer of a vision transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.linear import Linear, linear
from pie_inference.layers.norms import LayerNorm
from pie_inference.layers.rope import Rope

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """Attention within each image, and a feed-forward."""

    norm1: LayerNorm
    query_key_value: Linear
    output: Linear
    norm2: LayerNorm
    up: Linear
    down: Linear
    heads: int
    activation: Callable[[torch.Tensor], torch.Tensor]

    def __call__(
        self, x: torch.Tensor, images: int, angles: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states `[images * tokens, hidden]` of as many, of equally large images. Queries
        and keys turn by angles `[images * tokens, head_dim / 2]`, if there are any.
        """
        qkv = self.query_key_value(self.norm1(x)).view(len(x), 3, self.heads, -1)
        if angles is not None:
            turned = Rope.turned(qkv[:, :2].flatten(1, 2).float(), angles, False)
            qkv[:, :2] = turned.view(len(x), 2, self.heads, -1)
        parts = qkv.view(images, -1, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = self.output.add_to(x, seen.transpose(1, 2).reshape(len(x), -1))
        return self.down.add_to(x, self.activation(self.up(self.norm2(x))))


def take_layer(
    take: Callable[[str], torch.Tensor],
    names: Sequence[str],
    epsilon: float,
    heads: int,
    activation: str,
) -> VisionLayer:
    """A layer of tensors of these names: the first norm, query, key and value (together, or each),
    output, the second norm, up, down.
    """
    norm1, *query_key_value, output, norm2, up, down = names
    return VisionLayer(
        norm1=take_norm(take, norm1, epsilon),
        query_key_value=take_linear(take, *query_key_value),
        output=take_linear(take, output),
        norm2=take_norm(take, norm2, epsilon),
        up=take_linear(take, up),
        down=take_linear(take, down),
        heads=heads,
        activation=ACTIVATIONS[activation],
    )


def take_norm(take: Callable[[str], torch.Tensor], name: str, epsilon: float) -> LayerNorm:
    """The norm of that name."""
    return LayerNorm(take(f"{name}.weight"), take(f"{name}.bias"), epsilon)


def take_linear(take: Callable[[str], torch.Tensor], *names: str) -> Linear:
    """One product in the place of several that have the same input."""
    weights, biases = [take(f"{n}.weight") for n in names], [take(f"{n}.bias") for n in names]
    return linear(torch.cat(weights), torch.cat(biases))
