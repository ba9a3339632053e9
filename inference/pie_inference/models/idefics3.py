"""Idefics 3 (Laurençon et al. 2024) and SmolVLM (Marafioti et al. 2025): images cut into tiles.

What the decoder reads of an image is a text of its own: the tiles row by row, then the whole
picture made smaller, with special tokens that say which is which.
"""

from __future__ import annotations

import math
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.loader import read_preprocessing
from pie_inference.device import upload, upload_index
from pie_inference.errors import LoadError
from pie_inference.layers.linear import linear
from pie_inference.models.decoder import Decoder
from pie_inference.models.spec import Config, DecoderSpec, Shapes
from pie_inference.models.tensors import decoder_tensors
from pie_inference.models.text_part import text_spec
from pie_inference.vision.images import ImageEncoder
from pie_inference.vision.preprocessing import Tiles, tiles_of_config
from pie_inference.vision.transformer import (
    VisionSpec,
    VisionTransformer,
    vision_spec,
    vision_tensors,
)
from pie_py.wire.images import ImageRule

TEXT, VISION = "model.text_model.", "model.vision_model."
CONNECTOR = "model.connector.modality_projection.proj.weight"
AROUND, WHOLE, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"


@dataclass(frozen=True, slots=True)
class Idefics3Spec:
    """The parts of an Idefics 3."""

    decoder: DecoderSpec
    vision: VisionSpec
    scale: int  # so many patches in a row, and in a column, become one embed

    @property
    def tile_embeds(self) -> int:
        """Embeds of one tile, without the tokens around."""
        return self.vision.tokens // self.scale**2


def idefics3(config: Config) -> Idefics3Spec:
    """Reads an Idefics 3's or SmolVLM's config.json."""
    fields = Fields(config)
    vision = vision_spec(fields.table("vision_config"), -1)
    scale = fields.count("scale_factor", 2)
    if (vision.image_size // vision.patch_size) % scale:
        raise LoadError(
            f"config.json: scale_factor {scale} does not divide the patches of a row,"
            f" {vision.image_size // vision.patch_size}"
        )
    return Idefics3Spec(text_spec(config, TEXT, "lm_head"), vision, scale)


def idefics3_tensors(spec: Idefics3Spec) -> Shapes:
    """Names and shapes of the tensors that a checkpoint must have."""
    tensors = decoder_tensors(spec.decoder) | vision_tensors(spec.vision, VISION)
    tensors[CONNECTOR] = (spec.decoder.shape.hidden, spec.vision.hidden * spec.scale**2)
    return tensors


def idefics3_rename(name: str) -> str | None:
    """The name here of a stored tensor, or None for one without use."""
    return None if re.search(r"\.embeddings\.position_ids$", name) else name


class Idefics3(Decoder):
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
        spec = idefics3(config)
        tiles = tiles_of_config(read_preprocessing(folder), spec.vision.image_size)
        layout = _Layout(folder, spec.tile_embeds, tiles)
        tower = VisionTransformer(spec.vision, weights, VISION)
        projection = linear(weights.pop(CONNECTOR))
        super().__init__(spec.decoder, weights, dtype, device)

        def encode(images: list[Image.Image]) -> list[torch.Tensor]:
            return [encoded(image) for image in images]

        def encoded(image: Image.Image) -> torch.Tensor:
            pixels, rows, columns = tiles(image)  # [tiles, 3, size, size]
            seen = _joined(tower(upload(pixels, device).to(dtype)), spec.scale)
            tokens = np.array(layout.tokens(rows, columns))
            at = upload_index(np.flatnonzero(tokens == layout.image_token), device)
            return self.embed(upload_index(tokens, device)).index_copy_(0, at, projection(seen))

        self.images = ImageEncoder(layout.rule, encode)


def _joined(seen: torch.Tensor, scale: int) -> torch.Tensor:
    """Squares of `scale * scale` neighbouring patches, side by side: `[n, scale² * hidden]`."""
    tiles, patches, hidden = seen.shape
    side = math.isqrt(patches) // scale
    blocks = seen.view(tiles, side, scale, side, scale, hidden)
    return blocks.permute(0, 1, 3, 2, 4, 5).reshape(-1, scale**2 * hidden)


class _Layout:
    """The tokens around an image's tiles, which the tokenizer makes of a text."""

    def __init__(self, folder: Path, tile_embeds: int, tiles: Tiles) -> None:
        """Reads the tokenizer, and finds the rule by which the tokens grow with the tiles. Raises
        `LoadError` if it cannot be read, lacks the image token, or there is no such rule.
        """
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # noqa: BLE001  the library raises no class of its own
            raise LoadError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from None
        self._tile_embeds = tile_embeds
        token = self._tokenizer.token_to_id(IMAGE)
        if token is None:
            raise LoadError(f"{folder / 'tokenizer.json'} lacks the token {IMAGE}")
        self.image_token: int = token
        self.tokens = lru_cache(self._tokens)  # (rows, columns) -> ids, image tokens for the tiles
        if not tiles.most:
            self.rule = ImageRule(len(self.tokens(0, 0)))
            return
        whole, one, wide, high = (
            len(self.tokens(*grid)) for grid in ((0, 0), (1, 1), (1, 2), (2, 1))
        )
        per_tile, per_row = wide - one, high - wide
        cut = one - per_tile - per_row
        self.rule = ImageRule(whole, tiles.size, tiles.longest, per_tile, per_row, cut)
        for rows in range(1, tiles.most + 1):
            for columns in range(1, tiles.most + 1):
                found = len(self.tokens(rows, columns))
                if found != cut + rows * (per_row + columns * per_tile):
                    raise LoadError(
                        f"{folder / 'tokenizer.json'}: {rows} x {columns} tiles are {found} tokens,"
                        f" not as many more than fewer tiles as those are"
                    )

    def _tokens(self, rows: int, columns: int) -> list[int]:
        picture = IMAGE * self._tile_embeds
        text = ""
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                text += f"{AROUND}<row_{row}_col_{column}>{picture}"
            text += "\n"
        if rows:
            text += "\n"
        text += f"{AROUND}{WHOLE}{picture}{AROUND}"
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
