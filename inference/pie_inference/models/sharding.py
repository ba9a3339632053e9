"""A rank's part of a decoder: some heads, some of the inner size and of the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from pie_inference.errors import LoadError
from pie_inference.models.spec import Block, DecoderSpec, MlpSpec
from pie_inference.parallel.ranks import Ranks


def sharded(spec: DecoderSpec, size: int) -> DecoderSpec:
    """The part of a decoder that each of so many ranks has. Raises `LoadError` if heads or inner
    sizes do not divide among them.
    """
    shape = spec.shape
    whole = [len(spec.attention_names) == 1, shape.sinks, shape.latent]
    whole.append(shape.recurrent is not None or spec.output_gate)
    for block in spec.feed_forward:
        whole.append(block.up is None or getattr(block, "shared", None) is not None)
    if any(whole):
        raise LoadError(
            "tensor_parallel_size: models of this architecture cannot be divided among ranks; run"
            " it on one device"
        )
    for count, what in (
        (shape.heads, "attention heads"),
        (shape.kv_heads, "kv heads"),
        *((block.inner, "numbers of a feed-forward block") for block in spec.feed_forward),
    ):
        if count % size:
            raise LoadError(
                f"tensor_parallel_size: {count} {what} do not divide among {size} ranks; take a"
                " divisor"
            )
    return replace(
        spec,
        shape=replace(shape, heads=shape.heads // size, kv_heads=shape.kv_heads // size),
        feed_forward=tuple(replace(b, inner=b.inner // size) for b in spec.feed_forward),
    )


def part_of(spec: DecoderSpec, ranks: Ranks) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """The part that a rank takes of a tensor of a whole decoder, by its name.

    Products whose results are divided take rows, those whose inputs are take columns: their results
    are summed. The bias of a sum is the first rank's.
    """
    rows: set[str] = set()
    columns: set[str] = set()
    for i, block in enumerate(spec.feed_forward):
        prefix = f"model.layers.{i}."
        rows |= {f"{prefix}self_attn.{name}_proj" for name in "qkv"}
        columns.add(f"{prefix}self_attn.o_proj")
        for mlp in _blocks(block):
            rows |= {f"{prefix}{mlp.gate}", f"{prefix}{mlp.up}"}
            columns.add(f"{prefix}{mlp.down}")
    if divides_head(spec, ranks.size):
        rows.add("lm_head")

    def take(name: str, tensor: torch.Tensor) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        if module in rows:
            return tensor.chunk(ranks.size, 0)[ranks.rank].clone()
        if module in columns and kind == "weight":
            return tensor.chunk(ranks.size, 1)[ranks.rank].clone()
        if module in columns and ranks.rank:
            return torch.zeros_like(tensor)
        return tensor

    return take


def divides_head(spec: DecoderSpec, size: int) -> bool:
    """True if each rank computes a part of the logits; else each computes all."""
    return spec.shape.vocab_size % size == 0


def _blocks(block: Block) -> list[MlpSpec]:
    if isinstance(block, MlpSpec):
        return [block]
    return [block.expert(number) for number in range(block.experts)]
