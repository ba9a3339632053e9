"""One handler for each kind of command, with what it writes, by the kind in `HANDLERS`."""

from __future__ import annotations

from pie_inference.handlers import embeds, encode, forward, pages, sample, samplers
from pie_inference.handlers.base import NONE, Handler, writes_embeds
from pie_py.wire import plan

HANDLERS: dict[type[object], Handler] = {
    plan.EmbedText: Handler(embeds.embed_text, writes_embeds),
    plan.EmbedImage: Handler(embeds.embed_image, writes_embeds, long=True),
    plan.EmbedSampled: Handler(embeds.embed_sampled, writes_embeds),
    plan.CopyEmbed: Handler(embeds.copy_embed, writes_embeds),
    plan.Forward: Handler(forward.forward_within_memory, forward.writes_outputs, long=True),
    plan.Encode: Handler(encode.encode, long=True),
    plan.CopyKv: Handler(pages.copy_kv, lambda _, batch: plan.Clear(batch.targets, NONE, NONE)),
    plan.MaskKv: Handler(pages.mask_kv),
    plan.ShiftKv: Handler(pages.shift_kv, lambda _, batch: plan.Clear(batch.slots, NONE, NONE)),
    plan.NextDist: Handler(sample.next_dist),
    plan.ReadHidden: Handler(sample.read_hidden),
    plan.ReadState: Handler(samplers.read_state),
    plan.WriteState: Handler(samplers.write_state),
    plan.SetSampler: Handler(samplers.set_sampler),
    plan.FeedSampler: Handler(samplers.feed_sampler),
    plan.KeepLogits: Handler(sample.keep_logits),
    plan.Sample: Handler(sample.sample),
    plan.Clear: Handler(pages.clear),
    plan.SwapOut: Handler(pages.swap_out, lambda _, batch: plan.Clear(NONE, NONE, batch.hosts)),
    plan.SwapIn: Handler(pages.swap_in, pages.writes_pages),
}
