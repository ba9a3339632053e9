"""One handler for each kind of command, with what it writes, by the kind in `HANDLERS`."""

from __future__ import annotations

from pie_inference.handlers.base import NONE, Handler, writes_embeds
from pie_inference.handlers.embeds import copy_embed, embed_image, embed_sampled, embed_text
from pie_inference.handlers.forward import forward, forward_within_memory, writes_outputs
from pie_inference.handlers.pages import (
    clear,
    copy_kv,
    mask_kv,
    shift_kv,
    swap_in,
    swap_out,
    writes_pages,
)
from pie_inference.handlers.sample import keep_logits, next_dist, read_hidden, sample
from pie_inference.handlers.samplers import feed_sampler, read_state, set_sampler, write_state
from pie_py.wire import plan

__all__ = [
    "HANDLERS",
    "clear",
    "copy_embed",
    "copy_kv",
    "embed_image",
    "embed_sampled",
    "embed_text",
    "feed_sampler",
    "forward",
    "forward_within_memory",
    "keep_logits",
    "mask_kv",
    "next_dist",
    "read_hidden",
    "read_state",
    "sample",
    "set_sampler",
    "shift_kv",
    "swap_in",
    "swap_out",
    "write_state",
]

HANDLERS: dict[type[object], Handler] = {
    plan.EmbedText: Handler(embed_text, writes_embeds),
    plan.EmbedImage: Handler(embed_image, writes_embeds, long=True),
    plan.EmbedSampled: Handler(embed_sampled, writes_embeds),
    plan.CopyEmbed: Handler(copy_embed, writes_embeds),
    plan.Forward: Handler(forward_within_memory, writes_outputs, long=True),
    plan.CopyKv: Handler(copy_kv, lambda _, batch: plan.Clear(batch.targets, NONE, NONE)),
    plan.MaskKv: Handler(mask_kv),
    plan.ShiftKv: Handler(shift_kv, lambda _, batch: plan.Clear(batch.slots, NONE, NONE)),
    plan.NextDist: Handler(next_dist),
    plan.ReadHidden: Handler(read_hidden),
    plan.ReadState: Handler(read_state),
    plan.WriteState: Handler(write_state),
    plan.SetSampler: Handler(set_sampler),
    plan.FeedSampler: Handler(feed_sampler),
    plan.KeepLogits: Handler(keep_logits),
    plan.Sample: Handler(sample),
    plan.Clear: Handler(clear),
    plan.SwapOut: Handler(swap_out, lambda _, batch: plan.Clear(NONE, NONE, batch.hosts)),
    plan.SwapIn: Handler(swap_in, writes_pages),
}
