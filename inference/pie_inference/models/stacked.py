"""Experts whose tensors a checkpoint has together, one by one."""

from __future__ import annotations

from functools import partial

import torch

from pie_inference.checkpoints.sources import Entry, Source, Sources
from pie_inference.models.spec import DecoderSpec, ExpertsSpec, StackedNames


def each_expert(spec: DecoderSpec, sources: Sources) -> Sources:
    """Sources in which every expert has tensors of its own, of the names in its `MlpSpec`."""
    found = dict(sources)
    for i, block in enumerate(spec.feed_forward):
        if not isinstance(block, ExpertsSpec) or block.stacked is None:
            continue
        prefix = f"{spec.prefix}layers.{i}."
        names = block.stacked
        for kind, suffix in (("weight", ""), ("bias", "_bias")):
            for whole, gates in ((names.gate_up, True), (names.down, False)):
                stored = found.get(f"{prefix}{whole}{suffix}")
                if stored is None or stored.shape[:1] != (block.experts,):
                    continue
                del found[f"{prefix}{whole}{suffix}"]
                for number in range(block.experts):
                    expert = block.expert(number)
                    name = f"{prefix}{expert.gate if gates else expert.down}.{kind}"
                    found[name] = _entry(stored, number, names, gates)
    return found


def _entry(whole: Source, number: int, names: StackedNames, gates: bool) -> Entry:
    shape = whole.shape[1:]
    transposed = names.transposed and len(shape) == 2
    arrange = partial(_arranged, transposed=transposed, alternating=names.alternating and gates)
    return Entry(whole, number, arrange, shape[::-1] if transposed else shape)


def _arranged(tensor: torch.Tensor, *, transposed: bool, alternating: bool) -> torch.Tensor:
    """`[out, in]` or `[out]`, the gate's rows before those of up."""
    if transposed:
        tensor = tensor.t()
    return torch.cat([tensor[::2], tensor[1::2]]) if alternating else tensor
