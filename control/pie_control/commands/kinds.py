"""The kinds of commands that there are.

A new kind is a file of this folder and its line here, its batch in the wire protocol, and the
worker's handler. The scheduler, the scrub list and provenance need no change.
"""

from pie_control.commands.command import Command
from pie_control.commands.copy_embed import CopyEmbedCommand
from pie_control.commands.copy_page import CopyKvCommand
from pie_control.commands.distribution import NextDistCommand
from pie_control.commands.embed_image import EmbedImageCommand
from pie_control.commands.embed_text import EmbedTextCommand
from pie_control.commands.forward import ForwardCommand
from pie_control.commands.keep_logits import KeepLogitsCommand
from pie_control.commands.mask_page import MaskKvCommand
from pie_control.commands.sample import EmbedSampledCommand, SampleCommand
from pie_control.commands.sampler import FeedSamplerCommand, SetSamplerCommand
from pie_control.commands.shift_page import ShiftKvCommand
from pie_control.commands.swap import SwapInCommand, SwapOutCommand

KINDS: tuple[type[Command], ...] = (
    EmbedTextCommand,
    EmbedImageCommand,
    CopyEmbedCommand,
    ForwardCommand,
    CopyKvCommand,
    MaskKvCommand,
    ShiftKvCommand,
    NextDistCommand,
    SetSamplerCommand,
    FeedSamplerCommand,
    KeepLogitsCommand,
    SampleCommand,
    EmbedSampledCommand,
    SwapOutCommand,
    SwapInCommand,
)
# `RunCommand` is none of them: what a run does are batches of these kinds.
BY_WIRE_KIND = {kind.kind: kind for kind in KINDS}
