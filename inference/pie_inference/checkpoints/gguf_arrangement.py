"""Tensors of a GGUF in the form in which a checkpoint has them."""

from __future__ import annotations

from functools import partial

import torch

from pie_inference.checkpoints.gguf_families import Facts, Family
from pie_inference.checkpoints.sources import ByRows, Entry, Made, Source, Sources

# What is made of a delta net's values: of other tensors than these, all rows are.
_BEHIND_KEYS = ("attn_qkv", "ssm_conv1d")
_BY_VALUE = (*_BEHIND_KEYS, "attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt")
WHOLE_GROUPS = 32  # inputs, the most that a GGUF's group has


def arranged(family: Family, facts: Facts, module: str, source: Source) -> Source:
    """The tensor as a checkpoint has it."""
    if family.norm_offset and module.endswith("norm") and module != "ssm_norm":
        return Made(source.shape, lambda tensor: tensor - family.norm_offset, source)
    if family.neighbours and module in ("attn_q", "attn_k"):
        heads = facts.count("attention.head_count")
        if module == "attn_k":
            heads = facts.count("attention.head_count_kv", heads)
        return ByRows(source.shape, partial(_unpermuted, heads), source)
    if module == "ffn_gate_inp_shexp" and len(source.shape) == 1:
        return Made((1, *source.shape), lambda tensor: tensor[None], source)
    if family.tiled:
        source = _by_key(facts, module, source)
    if module == "ssm_a":
        return Made(source.shape, lambda rate: (-rate).log(), source)
    if module == "ssm_conv1d":
        channels, kernel = source.shape
        return Made((channels, 1, kernel), lambda weight: weight[:, None], source)
    return source


def together(family: Family, facts: Facts, found: dict[str, Source]) -> Sources:
    """Sources of a checkpoint's names in which what a GGUF has apart is one tensor."""
    for name in [name for name in found if name.endswith(".k_b_proj.weight")]:
        keys, values = found.pop(name), found.pop(name.replace(".k_b", ".v_b"))
        heads, rank, plain = keys.shape
        shape = heads * (plain + values.shape[1]), rank
        found[name.replace(".k_b", ".kv_b")] = Made(shape, _latent_to_heads, keys, values)
    for name in [name for name in found if name.endswith("_layernorm.weight")]:
        if len(found[name].shape) == 2:  # StableLM's, a norm for each head
            whole, stem = found.pop(name), name.removesuffix("weight")
            for head in range(whole.shape[0]):
                found[f"{stem}norms.{head}.weight"] = Entry(whole, head)
    for name in [name for name in found if family.joined and ".in_proj_qkv." in name]:
        mixed, gates = found.pop(name), found.pop(name.replace("_qkv", "_z"))
        heads = facts.count("ssm.group_count")
        keys_of_all = heads * facts.count("ssm.state_size")
        rows = torch.arange(mixed.shape[0] + gates.shape[0])
        parts = rows.tensor_split((keys_of_all, 2 * keys_of_all, mixed.shape[0]))
        order = torch.cat([part.view(heads, -1) for part in parts], 1).flatten()
        size = len(order), *mixed.shape[1:]
        found[name.replace("_qkv", "_qkvz")] = ByRows(size, partial(_ordered, order), mixed, gates)
    return found


def _ordered(order: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts).index_select(0, order)


def _latent_to_heads(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


def _by_key(facts: Facts, module: str, source: Source) -> Source:
    """With the value heads of one key head together."""
    keys, values = facts.count("ssm.group_count"), facts.count("ssm.time_step_rank")
    inner = facts.count("ssm.inner_size")
    if module == "ssm_out":
        make = partial(_columns_by_key, values // keys, keys)
        whole = inner // values % WHOLE_GROUPS == 0
        return (ByRows if whole else Made)(source.shape, make, source)
    if module not in _BY_VALUE:
        return source
    first = source.shape[0] - inner if module in _BEHIND_KEYS else 0
    return ByRows(source.shape, partial(_rows_by_key, first, values // keys, keys), source)


def _rows_by_key(first: int, shared: int, keys: int, tensor: torch.Tensor) -> torch.Tensor:
    values = tensor[first:]
    heads = values.reshape(shared, keys, -1, *values.shape[1:]).transpose(0, 1)
    return torch.cat([tensor[:first], heads.reshape(values.shape)])


def _columns_by_key(shared: int, keys: int, tensor: torch.Tensor) -> torch.Tensor:
    heads = tensor.reshape(len(tensor), shared, keys, -1).transpose(1, 2)
    return heads.reshape(tensor.shape).contiguous()


def _unpermuted(heads: int, tensor: torch.Tensor) -> torch.Tensor:
    """Rows of queries or keys in the order of the halves of a head; the file has pairs."""
    pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()
