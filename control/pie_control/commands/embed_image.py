"""Images into embeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from pie_control.commands.command import BatchLimits, Command, Numbers, Touched, int32, within
from pie_control.errors import Code
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import EmbedImage

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub


@dataclass(slots=True, eq=False)
class EmbedImageCommand(Command):
    """Embeds an image."""

    kind: ClassVar[str] = EmbedImage.kind
    one_batch_a_plan: ClassVar[bool] = True
    refused_as: ClassVar[Code] = "invalid-argument"
    size: ImageSize
    file: bytes
    positions: Numbers  # [n]
    embeds: Numbers  # [n]

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """Embeds."""
        return sum(len(command.embeds) for command in commands)

    def read(self) -> Touched:
        """Nothing."""
        return [], []

    def written(self) -> Touched:
        """The embeds."""
        return [], self.embeds

    @classmethod
    def join(cls, commands: Sequence[Self]) -> EmbedImage:
        """One batch; the worker's arrays have whole words, so each file is padded to them."""
        files = [command.file for command in commands]
        words = b"".join(file + bytes(-len(file) % 4) for file in files)
        return EmbedImage(
            sizes=np.array([(c.size.width, c.size.height) for c in commands], np.int32),
            lengths=int32([len(file) for file in files]),
            files=np.frombuffer(words, np.uint32),
            positions=int32([place for command in commands for place in command.positions]),
            embeds=int32([embed for command in commands for embed in command.embeds]),
        )

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as have the tokens of a batch."""
        return within((len(command.embeds) for command in commands), limits.tokens)

    def scrub(self, scrub: Scrub) -> None:
        """The embeds."""
        scrub.embeds.update(self.embeds)
