"""What the worker needs of a model that reads images."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from PIL import Image


class ImageEncoder(ABC):
    """Turns images into embeds."""

    @property
    @abstractmethod
    def embeds(self) -> int:
        """Embeds that an image takes, whatever its size."""

    @abstractmethod
    def encode(self, images: list[Image.Image]) -> torch.Tensor:
        """Hidden states `[images, embeds, hidden]`, ready to be inputs beside embedded tokens."""
