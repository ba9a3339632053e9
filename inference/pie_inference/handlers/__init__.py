"""One handler a kind of command: it runs a batch on a served model."""

from __future__ import annotations

from pie_inference.handlers.clear import clear, written_by
from pie_inference.handlers.copy_embed import copy_embed
from pie_inference.handlers.copy_kv import copy_kv
from pie_inference.handlers.divided import forward_within_memory
from pie_inference.handlers.embed_image import embed_image
from pie_inference.handlers.embed_sampled import embed_sampled
from pie_inference.handlers.embed_text import embed_text
from pie_inference.handlers.forward import forward
from pie_inference.handlers.mask_kv import mask_kv
from pie_inference.handlers.next_dist import next_dist
from pie_inference.handlers.sample import sample
from pie_inference.handlers.samplers import feed_sampler, set_sampler
from pie_inference.handlers.swap import swap_in, swap_out

__all__ = [
    "clear",
    "copy_embed",
    "copy_kv",
    "embed_image",
    "embed_sampled",
    "embed_text",
    "feed_sampler",
    "forward",
    "forward_within_memory",
    "mask_kv",
    "next_dist",
    "sample",
    "set_sampler",
    "swap_in",
    "swap_out",
    "written_by",
]
