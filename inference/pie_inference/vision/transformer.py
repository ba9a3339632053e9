"""The vision transformers of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.layers.norms import LayerNorm
from pie_inference.vision.layer import ACTIVATIONS, take_layer, take_norm

# What checkpoints leave out of `vision_config`, for it is the default.
_IDEFICS = {
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "patch_size": 32,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "idefics3": _IDEFICS,
    "idefics3_vision": _IDEFICS,
    "smolvlm": _IDEFICS,
    "smolvlm_vision": _IDEFICS,
    "clip_vision_model": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32},
    "siglip_vision_model": {
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "patch_size": 16,
    },
}
SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
}


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """A vision transformer, of which the first layers are used."""

    hidden: int
    inner: int
    layers: int  # used
    heads: int
    image_size: int  # height and width, pixels
    patch_size: int
    epsilon: float  # of the norms
    activation: str
    class_token: bool  # CLIP has one, before the patches, and a norm before the layers
    idefics: bool  # a norm after the layers, and positions by fractions of the image

    @property
    def tokens(self) -> int:
        """Patches, and the class token if there is one."""
        return (self.image_size // self.patch_size) ** 2 + self.class_token


def vision_spec(config: Mapping[str, Any], layer: int) -> VisionSpec:
    """Reads a `vision_config`. The result of that layer is wanted: 0 is the embedding, a negative
    one counts from the last. Raises `LoadError` for what is not supported or does not fit.
    """
    kind = config.get("model_type")
    if kind not in DEFAULTS:
        raise LoadError(
            f"config.json: vision model {kind!r} is not supported"
            f" (supported: {', '.join(DEFAULTS)})"
        )
    fields = Fields({**SIZES, **DEFAULTS[kind], **config}, "config.json: vision_config")
    layers = fields.count("num_hidden_layers")
    used = layer if layer >= 0 else layers + 1 + layer
    if not 0 <= used <= layers:
        raise LoadError(f"config.json: the vision tower has {layers} layers, no layer {layer}")
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    activation = fields.text("hidden_act", "")
    if activation not in ACTIVATIONS or hidden % heads or fields.count("num_channels", 3) != 3:
        raise LoadError(
            f"config.json: a vision tower with hidden_act {activation!r}, hidden_size {hidden},"
            f" {heads} heads is not supported (hidden_act: {', '.join(ACTIVATIONS)}; three"
            " channels)"
        )
    return VisionSpec(
        hidden=hidden,
        inner=fields.count("intermediate_size"),
        layers=used,
        heads=heads,
        image_size=fields.count("image_size"),
        patch_size=fields.count("patch_size"),
        epsilon=fields.number("layer_norm_eps", 1e-6),
        activation=activation,
        class_token=kind == "clip_vision_model",
        idefics=DEFAULTS[kind] is _IDEFICS,
    )


def vision_tensors(spec: VisionSpec, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that are used."""
    hidden, patch = spec.hidden, spec.patch_size
    tensors: dict[str, tuple[int, ...]] = {
        "embeddings.patch_embedding.weight": (hidden, 3, patch, patch),
        "embeddings.position_embedding.weight": (spec.tokens, hidden),
    }
    if spec.class_token:
        tensors["embeddings.class_embedding"] = (hidden,)
        tensors |= {f"pre_layrnorm.{part}": (hidden,) for part in ("weight", "bias")}
    else:
        tensors["embeddings.patch_embedding.bias"] = (hidden,)
    if spec.idefics:
        tensors |= {f"post_layernorm.{part}": (hidden,) for part in ("weight", "bias")}
    sizes = {f"self_attn.{n}_proj": (hidden, hidden) for n in ("q", "k", "v", "out")}
    sizes |= {"mlp.fc1": (spec.inner, hidden), "mlp.fc2": (hidden, spec.inner)}
    for i in range(spec.layers):
        layer = f"encoder.layers.{i}."
        for name, size in sizes.items():
            tensors[f"{layer}{name}.weight"] = size
            tensors[f"{layer}{name}.bias"] = size[:1]
        for norm in ("layer_norm1", "layer_norm2"):
            tensors |= {f"{layer}{norm}.{part}": (hidden,) for part in ("weight", "bias")}
    return {prefix + name: size for name, size in tensors.items()}


class VisionTransformer:
    """Patches of images, each of which sees all of its image."""

    def __init__(
        self, spec: VisionSpec, weights: MutableMapping[str, torch.Tensor], prefix: str
    ) -> None:
        """Builds the tower, taking its tensors out of `weights`."""
        self._spec = spec

        def take(name: str) -> torch.Tensor:
            return weights.pop(prefix + name)

        self._patches = take("embeddings.patch_embedding.weight")
        self._positions = take("embeddings.position_embedding.weight")
        if spec.idefics:
            places = _places(spec.image_size // spec.patch_size)
            self._positions = self._positions[places.to(self._positions.device)]
        epsilon = spec.epsilon
        self._last_norm = take_norm(take, "post_layernorm", epsilon) if spec.idefics else None
        self._class: torch.Tensor | None = None
        self._first_norm: LayerNorm | None = None
        self._patch_bias: torch.Tensor | None = None
        if spec.class_token:
            self._class = take("embeddings.class_embedding")
            self._first_norm = take_norm(take, "pre_layrnorm", epsilon)
        else:
            self._patch_bias = take("embeddings.patch_embedding.bias")
        names = ["layer_norm1", *(f"self_attn.{n}_proj" for n in ("q", "k", "v", "out"))]
        names += ["layer_norm2", "mlp.fc1", "mlp.fc2"]
        self._layers = [
            take_layer(
                take,
                [f"encoder.layers.{i}.{name}" for name in names],
                epsilon,
                spec.heads,
                spec.activation,
            )
            for i in range(spec.layers)
        ]

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Hidden states `[images, tokens, hidden]` of pixels `[images, 3, size, size]`."""
        spec = self._spec
        images = pixels.shape[0]
        x = F.conv2d(pixels, self._patches, self._patch_bias, stride=spec.patch_size)
        x = x.flatten(2).transpose(1, 2)
        if self._class is not None:
            x = torch.cat([self._class.expand(images, 1, -1), x], 1)
        x = (x + self._positions).reshape(
            -1, spec.hidden
        )  # how a convolution lays out is its affair
        if self._first_norm is not None:
            x = self._first_norm(x)
        for layer in self._layers:
            x = layer(x, images)
        if self._last_norm is not None:
            x = self._last_norm(x)
        return x.view(images, spec.tokens, spec.hidden)


def _places(side: int) -> torch.Tensor:
    """Rows `[side * side]` of the position table, for patches at fractions of an image.

    They are in order but for rounding, with which the models were trained.
    """
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))
    places = torch.bucketize(fractions.clamp(max=1.0 - 1e-6), bounds, right=True)
    return (places[:, None] * side + places[None, :]).reshape(-1)
