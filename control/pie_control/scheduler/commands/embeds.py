"""Commands that fill embeds: with tokens, an image, or copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pie_control.scheduler.commands.command import Command, Numbers, Scrub, column, int32
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import CopyEmbed, EmbedImage, EmbedText

if TYPE_CHECKING:
    from pie_control.prefix.provenance import Provenance


class _Fills(Command):
    """Fills embeds."""

    __slots__ = ()

    takes_tokens = True
    writes = ("", "embeds")
    embeds: Numbers

    def scrub(self, scrub: Scrub) -> None:
        """The embeds."""
        scrub.embeds.update(self.embeds)


@dataclass(slots=True, eq=False)
class EmbedTextCommand(_Fills):
    """Embeds tokens."""

    batch = EmbedText
    counted = "tokens"
    runs_ahead = False
    columns = ("tokens", "positions", "embeds")
    tokens: Numbers  # [n]
    positions: Numbers  # [n]
    embeds: Numbers  # [n]

    def trace(self, provenance: Provenance) -> None:
        """The embeds hold a text now."""
        provenance.embedded(self.queue, self.embeds, self.positions, self.tokens)


@dataclass(slots=True, eq=False)
class EmbedImageCommand(_Fills):
    """Embeds an image."""

    batch = EmbedImage
    counted = "embeds"
    one_batch_a_plan = True
    refused_as = "invalid-argument"
    size: ImageSize
    file: bytes
    positions: Numbers  # [n]
    embeds: Numbers  # [n]

    @classmethod
    def join(cls, commands: Sequence[Self]) -> EmbedImage:
        """One batch; the worker's arrays have whole words, so each file is padded to them."""
        files = [command.file for command in commands]
        words = b"".join(file + bytes(-len(file) % 4) for file in files)
        return EmbedImage(
            sizes=np.array([(c.size.width, c.size.height) for c in commands], np.int32),
            lengths=int32([len(file) for file in files]),
            files=np.frombuffer(words, np.uint32),
            positions=column(commands, "positions"),
            embeds=column(commands, "embeds"),
        )


@dataclass(slots=True, eq=False)
class CopyEmbedCommand(_Fills):
    """Copies embeds, to positions of their own or as they are."""

    batch = CopyEmbed
    counted = "embeds"
    columns = ("sources", "positions", "embeds")
    reads = ("", "sources")
    sources: Numbers  # [n] embeds
    positions: Numbers  # [n] of the targets; -1 is the source's
    embeds: Numbers  # [n] that become copies, no two the same
