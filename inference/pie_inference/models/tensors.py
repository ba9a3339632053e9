"""The tensors of a decoder: names and shapes; those of experts that are stored as one."""

from __future__ import annotations

from functools import partial

import torch

from pie_inference.checkpoints.fields import MAX_EXPERTS
from pie_inference.checkpoints.sources import ByRows, Entry, Made, Source, Sources
from pie_inference.errors import LoadError
from pie_inference.models.spec import (
    DecoderSpec,
    DeltaSpec,
    ExpertsSpec,
    LatentSpec,
    MlpSpec,
    Shapes,
    StackedNames,
)


def decoder_tensors(spec: DecoderSpec) -> Shapes:
    """Names and shapes of the tensors that a checkpoint must have. Raises `LoadError` if there are
    more than any has.
    """
    experts = sum(each.experts for each in spec.feed_forward if isinstance(each, ExpertsSpec))
    if experts > MAX_EXPERTS:
        raise LoadError(f"config.json: {experts} experts in all layers; {MAX_EXPERTS} at most")
    shape = spec.shape
    tensors: Shapes = {
        "model.embed_tokens.weight": (shape.vocab_size, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not spec.tied:
        tensors["lm_head.weight"] = (shape.vocab_size, shape.hidden)
    for i in range(len(spec.feed_forward)):
        for name, size in _layer_tensors(spec, i).items():
            tensors[f"model.layers.{i}.{name}"] = size
    return tensors


def _layer_tensors(spec: DecoderSpec, layer: int) -> Shapes:
    s = spec.shape
    tensors: Shapes = {}
    for norm in filter(None, spec.norms):
        tensors[f"{norm}.weight"] = (s.hidden,)
    if spec.delta is not None and spec.recurrent[layer]:
        tensors |= _delta_tensors(spec.delta, s.hidden)
    elif spec.latent is not None:
        tensors |= _latent_tensors(spec, spec.latent)
    else:
        tensors |= _attention_tensors(spec)
    block = spec.feed_forward[layer]
    if isinstance(block, MlpSpec):
        return tensors | _mlp_tensors(block, s.hidden)
    tensors[f"{block.router}.weight"] = (block.experts, s.hidden)
    if block.router_bias:
        tensors[f"{block.router}.bias"] = (block.experts,)
    if block.routing.corrected:
        tensors[f"{block.router}.e_score_correction_bias"] = (block.experts,)
    for number in range(block.experts):
        tensors |= _mlp_tensors(block.expert(number), s.hidden)
    if block.shared is not None:
        tensors |= _mlp_tensors(block.shared, s.hidden)
        if block.shared_gate:
            tensors[f"{block.shared_gate}.weight"] = (1, s.hidden)
    return tensors


def _delta_tensors(delta: DeltaSpec, hidden: int) -> Shapes:
    values = delta.value_heads * delta.value_dim
    sizes: Shapes = {
        **{f"{name}.weight": (size, hidden) for name, size in delta.inputs.items()},
        "conv1d.weight": (delta.mixed, 1, delta.kernel),
        "A_log": (delta.value_heads,),
        "dt_bias": (delta.value_heads,),
        "norm.weight": (delta.value_dim,),
        "out_proj.weight": (hidden, values),
    }
    return {f"linear_attn.{name}": size for name, size in sizes.items()}


def _latent_tensors(spec: DecoderSpec, latent: LatentSpec) -> Shapes:
    hidden, heads = spec.shape.hidden, spec.shape.heads
    queries = heads * (latent.plain + latent.turned)
    sizes: Shapes = {
        "kv_a_proj_with_mqa.weight": (latent.rank + latent.turned, hidden),
        "kv_a_layernorm.weight": (latent.rank,),
        "kv_b_proj.weight": (heads * (latent.plain + latent.value), latent.rank),
        "o_proj.weight": (hidden, heads * latent.value),
    }
    if latent.query_rank is None:
        sizes["q_proj.weight"] = (queries, hidden)
    else:
        sizes["q_a_proj.weight"] = (latent.query_rank, hidden)
        sizes["q_a_layernorm.weight"] = (latent.query_rank,)
        sizes["q_b_proj.weight"] = (queries, latent.query_rank)
    if latent.bias:
        biased = ("kv_a_proj_with_mqa", "o_proj", "q_a_proj")
        found = [name for name in biased if f"{name}.weight" in sizes]
        sizes |= {f"{name}.bias": sizes[f"{name}.weight"][:1] for name in found}
    return {f"self_attn.{name}": size for name, size in sizes.items()}


def _attention_tensors(spec: DecoderSpec) -> Shapes:
    s = spec.shape
    query, key = s.heads * s.head_dim, s.kv_heads * s.head_dim
    queries = 2 * query if spec.output_gate else query
    rows = (queries, key, key) if len(spec.attention_names) == 3 else (query + 2 * key,)
    tensors: Shapes = {"self_attn.o_proj.weight": (s.hidden, query)}
    for name, size in zip(spec.attention_names, rows, strict=True):
        tensors[f"self_attn.{name}.weight"] = (size, s.hidden)
        if spec.qkv_bias:
            tensors[f"self_attn.{name}.bias"] = (size,)
    if spec.output_bias:
        tensors["self_attn.o_proj.bias"] = (s.hidden,)
    if s.sinks:
        tensors["self_attn.sinks"] = (s.heads,)
    if spec.query_key_norm:
        tensors |= dict.fromkeys(
            (f"self_attn.{which}_norm.weight" for which in "qk"), (s.head_dim,)
        )
    return tensors


def _mlp_tensors(mlp: MlpSpec, hidden: int) -> Shapes:
    sizes = {mlp.gate: (mlp.inner if mlp.up else 2 * mlp.inner, hidden)}
    if mlp.up:
        sizes[mlp.up] = (mlp.inner, hidden)
    sizes[mlp.down] = (hidden, mlp.inner)
    tensors: Shapes = {f"{name}.weight": size for name, size in sizes.items()}
    if mlp.bias:
        tensors |= {f"{name}.bias": size[:1] for name, size in sizes.items()}
    return tensors


def each_expert(spec: DecoderSpec, sources: Sources) -> Sources:
    """Sources in which every expert has tensors of its own, of the names in its `MlpSpec`."""
    found = dict(sources)
    for i, block in enumerate(spec.feed_forward):
        if not isinstance(block, ExpertsSpec):
            continue
        prefix = f"model.layers.{i}."
        if block.stacked is None:
            found |= _taken_apart(block, prefix, found)
            continue
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


def _taken_apart(block: ExpertsSpec, prefix: str, found: dict[str, Source]) -> Sources:
    """Every expert's tensors, out of those that hold all of them though its spec names each."""
    stored = {
        name: found.get(f"{prefix}mlp.experts.{name}") for name in ("gate_up_proj", "down_proj")
    }
    both, down = stored["gate_up_proj"], stored["down_proj"]
    if both is None or down is None or block.up is None:
        return {}
    for name in stored:
        del found[f"{prefix}mlp.experts.{name}"]
    made: dict[str, Source] = {}
    rows, inputs = both.shape[1:]
    for number in range(block.experts):
        gate, up = block.gate.format(number), block.up.format(number)
        for name, part in ((gate, 0), (up, 1)):
            half = partial(_half, part=part)
            one = Entry(both, number)
            made[f"{prefix}{name}.weight"] = ByRows((rows // 2, inputs), half, one)
        made[f"{prefix}{block.down.format(number)}.weight"] = Entry(down, number)
    return made


def _half(tensor: torch.Tensor, part: int) -> torch.Tensor:
    return tensor.chunk(2)[part]


def _entry(whole: Source, number: int, names: StackedNames, gates: bool) -> Source:
    one = Entry(whole, number)
    transposed = names.transposed and len(one.shape) == 2
    arrange = partial(_arranged, transposed=transposed, alternating=names.alternating and gates)
    return Made(one.shape[::-1] if transposed else one.shape, arrange, one)


def _arranged(tensor: torch.Tensor, *, transposed: bool, alternating: bool) -> torch.Tensor:
    """`[out, in]` or `[out]`, the gate's rows before those of up."""
    if transposed:
        tensor = tensor.t()
    return torch.cat([tensor[::2], tensor[1::2]]) if alternating else tensor
