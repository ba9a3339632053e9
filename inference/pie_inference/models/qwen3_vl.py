"""Qwen 3 VL (Qwen 2025): Qwen 3, and a vision tower whose images have rows and columns.

A text's token has one position. What is of an image stands at the image's position, and so many
rows and columns further on in two of its three directions: some planes of its heads turn by the
position, some by row, some by column. Further features of it are added after the first layers
(DeepStack, Meng et al. 2024).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.loader import read_preprocessing
from pie_inference.device import upload
from pie_inference.errors import LoadError
from pie_inference.layers.rope import Angles
from pie_inference.memory.embeds import ImageInputs
from pie_inference.models.decoder import Decoder
from pie_inference.models.qwen import qwen3, within
from pie_inference.models.spec import Config, DecoderSpec, Shapes
from pie_inference.models.tensors import decoder_tensors
from pie_inference.vision.grid_transformer import (
    GridSpec,
    GridTransformer,
    grid_spec,
    grid_tensors,
)
from pie_inference.vision.images import ImageEncoder
from pie_inference.vision.preprocessing import blocks_of_config

VISION = "model.visual."
# What a `text_config` may leave out, for it is the default.
_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 128_000,
    "rope_theta": 500_000.0,
}
_SECTIONS = [24, 20, 20]


@dataclass(frozen=True, slots=True)
class Qwen3VlSpec:
    """The parts of a Qwen 3 VL."""

    decoder: DecoderSpec
    vision: GridSpec
    directions: tuple[int, ...]  # a plane each: 0 turns by the position, 1 by row, 2 by column


def qwen3_vl_text(config: Config) -> Config:
    """The configuration of the language model."""
    return within(config, _DEFAULTS)


def qwen3_vl(config: Config) -> Qwen3VlSpec:
    """Reads a Qwen 3 VL's config.json."""
    text = qwen3_vl_text(config)
    decoder, vision = qwen3(text), grid_spec(Fields(config).table("vision_config"))
    shape = decoder.shape
    if vision.out != shape.hidden or len(vision.deep) >= shape.layers:
        raise LoadError(
            f"config.json: a vision tower whose embeds have {vision.out} numbers, and features for"
            f" {len(vision.deep)} layers, does not fit a decoder of {shape.layers} layers with"
            f" {shape.hidden} numbers"
        )
    shape = replace(shape, image_layers=len(vision.deep))
    decoder = replace(decoder, shape=shape, prefix="model.language_model.")
    return Qwen3VlSpec(decoder, vision, _directions(text, shape.head_dim // 2))


def _directions(text: Config, planes: int) -> tuple[int, ...]:
    """By which direction each plane turns: the three take turns, as far as each has planes."""
    fields = Fields(text)
    rope = Fields(fields.table("rope_parameters") or fields.table("rope_scaling"))
    sections = rope.items("mrope_section") or _SECTIONS
    if len(sections) != 3 or sum(sections) != planes or not rope.flag("mrope_interleaved", True):
        raise LoadError(
            f"config.json: mrope_section {sections} of {planes} planes is not supported (three"
            " numbers that make up all planes, interleaved)"
        )
    return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(planes))


def qwen3_vl_tensors(spec: Qwen3VlSpec) -> Shapes:
    """Names and shapes of the tensors that a checkpoint must have."""
    return decoder_tensors(spec.decoder) | grid_tensors(spec.vision, VISION)


class Qwen3Vl(Decoder):
    """The decoder, with an encoder of images beside it."""

    def __init__(
        self,
        config: Config,
        weights: MutableMapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
        folder: Path,
    ) -> None:
        """Builds the model, taking its tensors out of `weights`."""
        spec = qwen3_vl(config)
        blocks = blocks_of_config(read_preprocessing(folder), spec.vision)
        tower = GridTransformer(spec.vision, weights, VISION)
        super().__init__(spec.decoder, weights, dtype, device)
        self._frequencies = spec.decoder.ropes[0].frequencies().to(device)
        self._directions = torch.tensor(spec.directions, device=device)

        def encode(images: list[Image.Image]) -> list[torch.Tensor]:
            # One after the other, for their shapes differ.
            return [tower(upload(blocks(image), device).to(dtype)) for image in images]

        self.images = ImageEncoder(blocks.rule, encode)

    def angles(self, positions: torch.Tensor, images: ImageInputs | None = None) -> list[Angles]:
        """By what inputs turn: those of an image in three directions."""
        if images is None:
            return super().angles(positions)
        three = positions[:, None].repeat(1, 3)
        three[images.rows, 1:] += images.places
        return [
            rope.own_angles(three[:, self._directions] * self._frequencies) for rope in self._ropes
        ]
