"""The vision transformer of Qwen 3 VL (Qwen 2025): images of any shape, in rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.vision.layer import ACTIVATIONS, take_layer, take_linear, take_norm

EPSILON = 1e-6  # of the norms
# What checkpoints leave out of `vision_config`, for it is the default.
_DEFAULTS: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
    "hidden_act": "gelu_pytorch_tanh",
}


@dataclass(frozen=True, slots=True)
class GridSpec:
    """A vision transformer for images in rows and columns."""

    hidden: int
    inner: int
    layers: int
    heads: int
    patch: int  # side, pixels
    frames: int  # of a video that a patch spans; an image is as many equal ones
    merge: int  # so many patches in a row, and in a column, become one embed
    side: int  # rows, and columns, of the table of positions
    out: int  # numbers of an embed
    deep: tuple[int, ...]  # layers whose results become further features of the embeds
    theta: float  # base of the rope
    activation: str

    @property
    def merged(self) -> int:
        """Numbers of the patches that become one embed."""
        return self.hidden * self.merge**2


def grid_spec(config: Mapping[str, Any]) -> GridSpec:
    """Reads a `vision_config`. Raises `LoadError` for what is not supported or does not fit."""
    where = "config.json: vision_config"
    fields = Fields({**_DEFAULTS, **config}, where)
    rope = fields.table("rope_parameters")
    places = fields.count("num_position_embeddings")
    deep = fields.items("deepstack_visual_indexes") or []
    spec = GridSpec(
        hidden=fields.count("hidden_size"),
        inner=fields.count("intermediate_size"),
        layers=fields.count("depth"),
        heads=fields.count("num_heads"),
        patch=fields.count("patch_size"),
        frames=fields.count("temporal_patch_size"),
        merge=fields.count("spatial_merge_size"),
        side=int(places**0.5),
        out=fields.count("out_hidden_size"),
        deep=tuple(deep),
        theta=Fields(rope, f"{where}: rope_parameters").number("rope_theta", 10_000.0),
        activation=fields.text("hidden_act", ""),
    )
    if (
        spec.activation not in ACTIVATIONS
        or spec.hidden % (4 * spec.heads)
        or spec.side**2 != places
        or fields.count("in_channels", 3) != 3
        or rope.get("rope_type", "axial") != "axial"
    ):
        raise LoadError(
            f"{where}: hidden_act {spec.activation!r}, hidden_size {spec.hidden}, num_heads"
            f" {spec.heads}, num_position_embeddings {places} are not supported together"
            f" (hidden_act: {', '.join(ACTIVATIONS)}; a multiple of 4 numbers a head, a square of"
            " positions, three channels, an axial rope)"
        )
    if sorted(set(deep)) != deep or not all(layer in range(spec.layers) for layer in deep):
        raise LoadError(f"{where}: deepstack_visual_indexes {deep} are no rising layers")
    return spec


def grid_tensors(spec: GridSpec, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors."""
    hidden, merged = spec.hidden, spec.merged
    patch = (hidden, 3, spec.frames, spec.patch, spec.patch)
    weights: dict[str, tuple[int, ...]] = {"patch_embed.proj": patch}
    for i in range(spec.layers):
        weights |= {
            f"blocks.{i}.norm1": (hidden,),
            f"blocks.{i}.norm2": (hidden,),
            f"blocks.{i}.attn.qkv": (3 * hidden, hidden),
            f"blocks.{i}.attn.proj": (hidden, hidden),
            f"blocks.{i}.mlp.linear_fc1": (spec.inner, hidden),
            f"blocks.{i}.mlp.linear_fc2": (hidden, spec.inner),
        }
    mergers = {"merger": hidden}
    mergers |= {f"deepstack_merger_list.{i}": merged for i in range(len(spec.deep))}
    for name, normed in mergers.items():
        weights[f"{name}.norm"] = (normed,)
        weights[f"{name}.linear_fc1"] = (merged, merged)
        weights[f"{name}.linear_fc2"] = (spec.out, merged)
    tensors: dict[str, tuple[int, ...]] = {"pos_embed.weight": (spec.side**2, hidden)}
    for name, size in weights.items():
        tensors |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return {prefix + name: size for name, size in tensors.items()}


class GridTransformer:
    """Patches of an image, each of which sees all of it; squares of them become embeds."""

    def __init__(
        self, spec: GridSpec, weights: MutableMapping[str, torch.Tensor], prefix: str
    ) -> None:
        """Builds the tower, taking its tensors out of `weights`."""
        self._spec = spec

        def take(name: str) -> torch.Tensor:
            tensor = weights.pop(prefix + name)
            return tensor.flatten(1) if tensor.dim() > 2 else tensor

        self._patches = take_linear(take, "patch_embed.proj")
        self._positions = take("pos_embed.weight")
        names = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.linear_fc1", "mlp.linear_fc2")
        self._layers = [
            take_layer(
                take,
                [f"blocks.{i}.{name}" for name in names],
                EPSILON,
                spec.heads,
                spec.activation,
            )
            for i in range(spec.layers)
        ]
        self._merger = _Merger(take, "merger", spec.hidden, spec.merged)
        self._deep = {
            layer: _Merger(take, f"deepstack_merger_list.{i}", spec.merged, spec.merged)
            for i, layer in enumerate(spec.deep)
        }

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embeds of an image `[3, height, width]`, row by row, and their further features behind
        them: `[embeds, (1 + deep) * out]`.
        """
        spec = self._spec
        rows, columns = pixels.shape[1] // spec.patch, pixels.shape[2] // spec.patch
        patches = pixels.view(3, rows, spec.patch, columns, spec.patch).permute(1, 3, 0, 2, 4)
        frames = self._squares(patches)[:, :, None].expand(-1, -1, spec.frames, -1, -1)
        x = self._patches(frames.flatten(1)) + self._squares(self._table(rows, columns))
        sides = (torch.arange(side, device=pixels.device) for side in (rows, columns))
        places = torch.cartesian_prod(*sides).view(rows, columns, 2)
        angles = self._angles(self._squares(places))
        deep = []
        for number, layer in enumerate(self._layers):
            x = layer(x, 1, angles)
            if number in self._deep:
                deep.append(self._deep[number](x))
        return torch.cat([self._merger(x), *deep], 1)

    def _squares(self, patches: torch.Tensor) -> torch.Tensor:
        """`[rows, columns, ...]` as `[rows * columns, ...]`, those of one embed side by side."""
        merge, (rows, columns) = self._spec.merge, patches.shape[:2]
        sides = rows // merge, merge, columns // merge, merge
        return patches.reshape(*sides, *patches.shape[2:]).transpose(1, 2).flatten(0, 3)

    def _table(self, rows: int, columns: int) -> torch.Tensor:
        """Position embeddings `[rows, columns, hidden]`: those of the table, interpolated."""
        side, hidden = self._spec.side, self._spec.hidden
        table = self._positions.float().view(1, side, side, hidden).permute(0, 3, 1, 2)
        found = F.interpolate(table, (rows, columns), mode="bilinear", align_corners=True)
        return found[0].permute(1, 2, 0).to(self._positions.dtype)

    def _angles(self, places: torch.Tensor) -> torch.Tensor:
        """The angles of patches in rows and columns `[n, 2]`, `[n, head_dim / 2]`, float32: half of
        the planes by rows, half by columns.
        """
        half = self._spec.hidden // self._spec.heads // 2
        exponents = torch.arange(0, half, 2, dtype=torch.float32, device=places.device) / half
        return (places[:, :, None] * (1.0 / self._spec.theta**exponents)).flatten(1)


class _Merger:
    """Makes one embed of the patches of a square."""

    def __init__(
        self, take: Callable[[str], torch.Tensor], name: str, normed: int, merged: int
    ) -> None:
        self._norm = take_norm(take, f"{name}.norm", EPSILON)
        self._up = take_linear(take, f"{name}.linear_fc1")
        self._down = take_linear(take, f"{name}.linear_fc2")
        self._normed, self._merged = normed, merged

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Embeds `[n, out]` of patches, `[n * patches, hidden]`."""
        normed = self._norm(x.reshape(-1, self._normed))  # of patches, or of squares
        return self._down(F.gelu(self._up(normed.view(-1, self._merged))))
