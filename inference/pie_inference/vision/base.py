"""What the worker needs of a model that reads images."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from PIL import Image

from pie_py.wire.images import ImageRule


class ImageEncoder(ABC):
    """Turns images into embeds."""

    @property
    @abstractmethod
    def rule(self) -> ImageRule:
        """How many embeds and positions an image takes."""

    @abstractmethod
    def encode(self, images: list[Image.Image]) -> list[torch.Tensor]:
        """Hidden states `[embeds, hidden]` of each image, ready to be inputs beside embedded
        tokens. Behind each is what is added after the model's first `image_layers` layers:
        `[embeds, (1 + image_layers) * hidden]`.
        """
