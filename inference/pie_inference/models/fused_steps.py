"""Forwards on a CPU with all layers in one call (`layers/step.c`).

PyTorch starts its threads for each of some 25 operators of a layer, of which the products are a
half of the time of a small model's step. This is for decoders of Llama's kind whose products are
`GroupedLinear`: sequences with one new token or a few, as in speculative decoding, and prompts,
with masks of a program's own and adapters. What a program chooses of the context, or is told of a
prompt, comes between two halves of a layer. Other models run layer by layer, and so does what is
observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pie_inference.attention.paging import step_rows
from pie_inference.attention.sequences import Sequences, lengths, output_rows
from pie_inference.device import Bool, Int32, Int64, upload_index
from pie_inference.layers.feed_forward import GatedMlp
from pie_inference.layers.grouped import LANES, GroupedLinear
from pie_inference.layers.lora import Adapter
from pie_inference.layers.step import (
    MOST_DIM,
    MOST_HEADS,
    PRODUCTS,
    DecodeStep,
    LayerChange,
    LayerWatch,
    StepLayer,
    StepRows,
)
from pie_inference.memory.embeds import EmbedPool
from pie_inference.memory.kv_cache import KvCache
from pie_inference.models.decoder import Decoder, Layer
from pie_inference.models.mixer import GroupedQueryAttention
from pie_inference.models.network import Network
from pie_inference.models.spec import DecoderSpec, MlpSpec, NormNames
from pie_py.wire.plan import Forward


def fused_steps(
    network: Network,
    cache: KvCache,
    embeds: EmbedPool,
    adapter_of: Callable[[int], Adapter],
    prompts: bool = False,
) -> FusedSteps | None:
    """Steps of a network over its pools, with the adapters of slots, and with `prompts` if rows of
    these are computed as others; None if it is none of those that can be fused.
    """
    if not isinstance(network, Decoder) or not _plain(network.spec) or cache.stored != cache.dtype:
        return None
    layers = [_step_layer(network, number, cache) for number in range(len(network.layers))]
    whole = [layer for layer in layers if layer is not None]
    if len(whole) < len(layers):
        return None
    shape, block = network.shape, network.spec.feed_forward[0]
    step = DecodeStep(
        whole,
        network.norm,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        dim=shape.head_dim,
        inner=block.inner,
        interleaved=network.spec.interleaved,
        epsilon=network.spec.epsilon,
    )
    return FusedSteps(network, step, cache, embeds, adapter_of, prompts)


def _plain(spec: DecoderSpec) -> bool:
    """True if the layers do nothing but what `step.c` knows."""
    shape, first = spec.shape, spec.feed_forward[0]
    return (
        not spec.output_gate
        and not shape.latent
        and shape.recurrent is None
        and spec.norms == NormNames()
        and spec.residual_scale == 1.0
        and spec.activation == "silu"
        and all(isinstance(block, MlpSpec) for block in spec.feed_forward)
        and all(block.inner == first.inner for block in spec.feed_forward)
        and not any(options.scored for options in shape.attention)
        and shape.heads <= MOST_HEADS
        and shape.head_dim <= MOST_DIM
        and shape.head_dim % LANES == 0
    )


def _step_layer(network: Decoder, number: int, cache: KvCache) -> StepLayer | None:
    layer: Layer = network.layers[number]
    mixer, mlp, options = layer.mixer, layer.mlp, network.shape.attention[number]
    assert isinstance(mixer, GroupedQueryAttention)
    blocks = mlp.layers if isinstance(mlp, GatedMlp) else ()
    products = (mixer.query_key_value, mixer.output, *blocks)
    grouped = [product for product in products if isinstance(product, GroupedLinear)]
    if len(grouped) < PRODUCTS:
        return None
    return StepLayer(
        grouped,
        [layer.mixer_norm, layer.mlp_norm, mixer.query_norm, mixer.key_norm],
        pool=cache.rows[number],
        window=options.sliding,
        rope=network.spec.layer_rope[number],
        scale=options.scale_of(cache.head_dim),
    )


class FusedSteps:
    """Runs forwards that it can."""

    def __init__(
        self,
        network: Decoder,
        step: DecodeStep,
        cache: KvCache,
        embeds: EmbedPool,
        adapter_of: Callable[[int], Adapter],
        prompts: bool = False,
    ) -> None:
        """Takes a network, its step and pools, what finds the adapter of a slot or raises
        `BadBatch`, and whether rows of prompts are as others.
        """
        self._network, self._step, self._adapter_of = network, step, adapter_of
        self.prompts = prompts
        self._cache, self._embeds = cache, embeds

    def renew(self) -> None:
        """The network has got other weights."""
        self._step.renew()

    def run(
        self,
        batch: Forward,
        sequences: Sequences,
        positions: Int32,
        watches: Sequence[LayerWatch] = (),
        changes: LayerChange | None = None,
    ) -> bool:
        """Runs a checked forward and writes its outputs, if it can. The watches see each layer, and
        changes are made of what some are given.
        Raises `BadBatch` if a sequence has an adapter that there is not.
        """
        if not self.takes(batch).all():
            return False
        self._cache.stamp(sequences.input_slots)
        outputs = output_rows(batch)
        found = self._step.run(
            self._embeds.read(batch.inputs).float(),
            self._network.angles(upload_index(positions, self._cache.data.device)),
            self._rows(batch, sequences, outputs, watches),
            self._network.between_layers or (lambda: None),
            watches,
            changes,
        )
        self._embeds.put(batch.outputs, found)
        return True

    def takes(self, batch: Forward) -> Bool:
        """Which sequences it can run, `[n]`. Raises `BadBatch` for an adapter that there is not."""
        able = np.ones(batch.has_masked.size, np.bool_)
        if batch.observed.size:
            able &= batch.observed == 0
        if batch.adapters.size:
            for slot in np.unique(batch.adapters[batch.adapters >= 0]).tolist():
                if not self._adapter_of(slot).is_fused:
                    able &= batch.adapters != slot
        return able

    def _rows(
        self,
        batch: Forward,
        s: Sequences,
        outputs: Int64,
        watches: Sequence[LayerWatch],
    ) -> StepRows:
        owners, adapters = self._adapters_of(batch, lengths(s.input_starts))
        more = {"wanted": outputs, "owners": owners, "adapters": adapters}
        rows = step_rows(s, self._cache, self.prompts, **more)
        for watch in watches:
            rows.keys[watch.rows] = 0
        return rows

    def _adapters_of(self, batch: Forward, inputs: Int64) -> tuple[Int64 | None, list[Adapter]]:
        """The adapter of each input, a place in the list or -1; None if no sequence has one."""
        if not batch.adapters.size or (batch.adapters < 0).all():
            return None, []
        used = np.unique(batch.adapters[batch.adapters >= 0])
        places = np.searchsorted(used, batch.adapters)
        owners = np.repeat(np.where(batch.adapters < 0, -1, places), inputs).astype(np.int64)
        return owners, list(map(self._adapter_of, used.tolist()))
