"""LLaVA (Liu et al. 2023): a vision tower, a projector, and a decoder that reads what comes out."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from PIL import Image

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.loader import read_preprocessing
from pie_inference.device import upload
from pie_inference.errors import LoadError
from pie_inference.layers.linear import linear
from pie_inference.models.decoder import Decoder
from pie_inference.models.spec import Config, DecoderSpec, Shapes
from pie_inference.models.tensors import decoder_tensors
from pie_inference.models.text_part import TEXT, text_name, text_spec
from pie_inference.vision.images import ImageEncoder
from pie_inference.vision.preprocessing import preprocessing
from pie_inference.vision.transformer import (
    VisionSpec,
    VisionTransformer,
    vision_spec,
    vision_tensors,
)
from pie_py.wire.images import ImageRule

VISION, PROJECTOR = "vision_tower.", "multi_modal_projector."


@dataclass(frozen=True, slots=True)
class LlavaSpec:
    """The parts of a LLaVA."""

    decoder: DecoderSpec
    vision: VisionSpec
    drops_first: bool  # the tower's first token, CLIP's class token
    projector_bias: bool

    @property
    def embeds(self) -> int:
        """Embeds an image."""
        return self.vision.tokens - self.drops_first


def llava(config: Config) -> LlavaSpec:
    """Reads a LLaVA's config.json."""
    fields = Fields(config)
    layer = config.get("vision_feature_layer", -2)
    if not isinstance(layer, int):
        raise LoadError(f"config.json: vision_feature_layer {layer!r} is not supported (one is)")
    strategy = fields.text("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise LoadError(f"config.json: vision_feature_select_strategy {strategy!r} is not known")
    if fields.text("projector_hidden_act", "gelu") != "gelu":
        raise LoadError("config.json: projector_hidden_act other than gelu is not supported")
    return LlavaSpec(
        decoder=text_spec(config, f"{TEXT}model.", f"{TEXT}lm_head"),
        vision=vision_spec(fields.table("vision_config"), layer),
        drops_first=strategy == "default",
        projector_bias=fields.flag("multimodal_projector_bias", True),
    )


def llava_tensors(spec: LlavaSpec) -> Shapes:
    """Names and shapes of the tensors that are used."""
    hidden = spec.decoder.shape.hidden
    tensors = decoder_tensors(spec.decoder) | vision_tensors(spec.vision, VISION)
    tensors[f"{PROJECTOR}linear_1.weight"] = (hidden, spec.vision.hidden)
    tensors[f"{PROJECTOR}linear_2.weight"] = (hidden, hidden)
    if spec.projector_bias:
        tensors[f"{PROJECTOR}linear_1.bias"] = tensors[f"{PROJECTOR}linear_2.bias"] = (hidden,)
    return tensors


def llava_rename(spec: LlavaSpec, name: str) -> str | None:
    """The name here of a stored tensor, in one of several layouts; None for one without use."""
    if name.startswith((f"model.{TEXT}", f"model.{VISION}", f"model.{PROJECTOR}")):
        name = name.removeprefix("model.")
    if name.startswith(VISION):
        name = name.replace(f"{VISION}vision_model.", VISION, 1)
        unused = re.match(rf"{VISION}(post_layernorm|head|embeddings\.position_ids)\b", name)
        layer = re.match(rf"{VISION}encoder\.layers\.(\d+)\.", name)
        if unused or (layer and int(layer[1]) >= spec.vision.layers):
            return None
    return text_name(name)


class Llava(Decoder):
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
        spec = llava(config)
        prepare = preprocessing(read_preprocessing(folder), spec.vision.image_size)
        tower = VisionTransformer(spec.vision, weights, VISION)
        first, second = (
            linear(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None))
            for name in (f"{PROJECTOR}linear_1", f"{PROJECTOR}linear_2")
        )
        super().__init__(spec.decoder, weights, dtype, device)

        def encode(images: list[Image.Image]) -> list[torch.Tensor]:
            pixels = np.stack([prepare(image) for image in images])
            seen = tower(upload(pixels, device).to(dtype))
            if spec.drops_first:
                seen = seen[:, 1:]
            projected = second(F.gelu(first(seen.reshape(-1, seen.shape[-1]))))
            return list(torch.split(projected, spec.embeds))

        self.images = ImageEncoder(ImageRule(spec.embeds), encode)
