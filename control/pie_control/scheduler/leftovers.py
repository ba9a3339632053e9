"""What dropped commands should have written, to be cleared before anybody reads it."""

from __future__ import annotations

import numpy as np

from pie_control.scheduler.batch import join
from pie_control.scheduler.command import (
    Command,
    CopyEmbedCommand,
    CopyKvCommand,
    EmbedImageCommand,
    EmbedSampledCommand,
    EmbedTextCommand,
    ForwardCommand,
    SampleCommand,
    SetSamplerCommand,
    SwapInCommand,
    SwapOutCommand,
)
from pie_py.wire.plan import Batch, Clear


class Leftovers:
    """Slots, embeds and host pages that hold what their last owner left.

    Control counts them as filled since the command that was to fill them was queued. That command will
    never run: another one before it failed. Samplers whose making was dropped are made all the same, for
    they have handles: nobody may sample with the parameters of a slot's last owner.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._slots: set[int] = set()
        self._embeds: set[int] = set()
        self._hosts: set[int] = set()
        self._samplers: set[int] = set()  # whose last token is not the one that was to be
        self._unmade: list[SetSamplerCommand] = []

    def add(self, command: Command) -> None:
        """Notes a command that is dropped."""
        match command:
            case ForwardCommand():
                self._slots.update(command.output_slots or (), command.sent)
                self._embeds.update(command.outputs)
            case EmbedTextCommand() | EmbedImageCommand() | CopyEmbedCommand():
                self._embeds.update(command.embeds)
            case EmbedSampledCommand():
                self._embeds.add(command.embed)
            case CopyKvCommand():
                self._slots.update(command.targets.tolist())
            case SwapInCommand():
                for page in command.pages.tolist():
                    self._slots.update(range(page * self._page_size, (page + 1) * self._page_size))
            case SwapOutCommand():
                self._hosts.update(command.hosts.tolist())
            case SampleCommand():
                self._samplers.add(command.sampler.slot)
            case SetSamplerCommand():
                self._unmade.append(command)

    def take(self) -> list[Batch]:
        """The batches that set this right, which go before all that is sent from now on."""
        parts = self._slots, self._embeds, self._hosts, self._samplers
        if not (any(parts) or self._unmade):
            return []
        batches = [
            *(join([command]) for command in self._unmade),
            Clear(*(np.array(sorted(part), np.int32) for part in parts)),
        ]
        self._unmade.clear()
        for part in parts:
            part.clear()
        return batches
