"""What FlashInfer's functions are documented to compute, in plain PyTorch: its kernels need a GPU.

The names, parameters and attributes that the worker uses are those of flashinfer-python 0.6.6, and
what its kernels demand of dtypes, shapes and devices is checked. `tests/gpu` holds the kernels to
it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

KvPool = tuple[torch.Tensor, torch.Tensor]


def _int32(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()


class _Wrapper:
    """What both wrappers share: planned tables, and attention over them."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> None:
        assert kv_layout == "NHD"
        assert float_workspace_buffer.dtype == torch.uint8
        self._plan: dict[str, Any] | None = None

    def reset_workspace_buffer(
        self, float_workspace_buffer: Any, int_workspace_buffer: Any
    ) -> None:
        assert int_workspace_buffer.dtype == torch.uint8

    def _planned(self, **plan: Any) -> None:
        starts, last, page_size = plan["starts"], plan["last"], plan["page_size"]
        _int32(starts, last)
        assert len(starts) == len(last) + 1
        assert plan["heads"] % plan["kv_heads"] == 0
        counts = starts.diff()
        assert (counts > 0).all(), "a sequence without keys"
        assert ((last > 0) & (last <= page_size)).all()
        self._plan = plan

    def _attend(
        self, q: torch.Tensor, paged_kv_cache: KvPool, out: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        plan = self._plan
        assert plan is not None, "run before plan"
        keys, values = paged_kv_cache
        _int32(indices)
        assert keys.stride() == values.stride()
        assert keys.stride(-1) == 1
        assert q.stride(-1) == 1
        assert q.dtype == out.dtype == plan["q_dtype"]
        assert keys.dtype == values.dtype == plan["kv_dtype"]
        assert keys.shape[1:] == (plan["page_size"], plan["kv_heads"], plan["head_dim"])
        assert q.shape[1:] == (plan["heads"], plan["head_dim"])
        assert out.shape == q.shape
        assert out.is_contiguous()
        first_cell = 0
        for i in range(len(plan["last"])):
            start, end = plan["starts"][i : i + 2].tolist()
            length = (end - start - 1) * plan["page_size"] + int(plan["last"][i])
            pages = indices[start:end].long()
            assert ((pages >= 0) & (pages < keys.shape[0])).all()
            own = slice(*plan["queries"][i : i + 2].tolist())
            count = own.stop - own.start
            mask = None
            if plan["mask"] is not None:
                mask = plan["mask"][first_cell : first_cell + count * length].view(count, length)
                first_cell += count * length
            out[own] = _attention(
                q[own].float(),
                keys[pages].flatten(0, 1)[:length].float(),
                values[pages].flatten(0, 1)[:length].float(),
                plan,
                mask,
            ).to(out.dtype)
        return out


def _attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: dict[str, Any],
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """`[queries, heads, head_dim]`."""
    group = plan["heads"] // plan["kv_heads"]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * plan["scale"]
    if plan["softcap"]:
        scores = plan["softcap"] * torch.tanh(scores / plan["softcap"])
    # Queries are the last of the keys.
    place = torch.arange(len(keys) - len(q), len(keys))[:, None]
    key = torch.arange(len(keys))[None, :]
    seen = torch.ones(len(q), len(keys), dtype=torch.bool)
    if mask is not None:
        seen = mask.clone()
    elif plan["causal"]:
        seen = key <= place
    if plan["window_left"] >= 0:
        seen &= key + plan["window_left"] >= place
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, values)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self._graph = use_cuda_graph
        given = (
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )
        # Without a graph, each plan brings its own.
        self._indptr, self._indices, self._last = (
            torch.empty(0, dtype=torch.int32) if buffer is None else buffer for buffer in given
        )
        if use_cuda_graph:
            assert all(buffer is not None for buffer in given)
            assert len(self._indptr) == len(self._last) + 1
            _int32(self._indptr, self._indices, self._last)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        if self._graph:
            assert len(last_page_len) == len(self._last)
            self._indptr.copy_(indptr)
            self._last.copy_(last_page_len)
            self._indices[: len(indices)].copy_(indices)
        else:
            self._indptr, self._indices, self._last = indptr, indices, last_page_len
        self._planned(
            starts=indptr.clone(),  # planning is done with what the host says
            last=last_page_len.clone(),
            queries=torch.arange(len(last_page_len) + 1),
            heads=num_qo_heads,
            kv_heads=num_kv_heads,
            head_dim=head_dim,
            page_size=page_size,
            window_left=window_left,
            softcap=logits_soft_cap,
            scale=sm_scale if sm_scale is not None else head_dim**-0.5,
            q_dtype=q_data_type,
            kv_dtype=kv_data_type if kv_data_type is not None else q_data_type,
            mask=None,
            causal=False,
        )

    def run(self, q: torch.Tensor, paged_kv_cache: KvPool, *, out: torch.Tensor) -> torch.Tensor:
        assert self._plan is not None
        if self._graph:  # the device's copies must agree with the plan
            assert torch.equal(self._indptr, self._plan["starts"])
            assert torch.equal(self._last, self._plan["last"])
        return self._attend(q, paged_kv_cache, out, self._indices)


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    *,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    q_data_type: torch.dtype | None = None,
    kv_data_type: torch.dtype | None = None,
    sm_scale: float | None = None,
    global_override_indptr_cpu: torch.Tensor | None = None,
) -> None:
    """As `plan`, but the buffers are the caller's to fill."""
    assert self._plan is not None, "the first plan must be a whole one"
    assert len(indices) <= len(self._indices)
    assert global_override_indptr_cpu is not None
    self._planned(
        **{
            **self._plan,
            "starts": global_override_indptr_cpu.clone(),
            "last": last_page_len.clone(),
            "window_left": window_left,
        }
    )


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", *, backend: str = "auto"
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        assert backend in ("auto", "fa2", "fa3")
        self._backend = backend

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        _int32(qo_indptr)
        if custom_mask is not None:
            assert custom_mask.dtype == torch.bool
            assert self._backend == "fa2", "masks are for the second generation only"
        self._indices = paged_kv_indices
        self._planned(
            starts=paged_kv_indptr,
            last=paged_kv_last_page_len,
            queries=qo_indptr,
            heads=num_qo_heads,
            kv_heads=num_kv_heads,
            head_dim=head_dim_qk,
            page_size=page_size,
            window_left=window_left,
            softcap=logits_soft_cap,
            scale=sm_scale if sm_scale is not None else head_dim_qk**-0.5,
            q_dtype=q_data_type,
            kv_dtype=kv_data_type if kv_data_type is not None else q_data_type,
            mask=custom_mask,
            causal=causal,
        )
        if custom_mask is not None:
            lengths = (paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len
            assert custom_mask.numel() == int((qo_indptr.diff() * lengths).sum())

    def run(self, q: torch.Tensor, paged_kv_cache: KvPool, *, out: torch.Tensor) -> torch.Tensor:
        assert self._plan is not None
        assert q.shape[0] == int(self._plan["queries"][-1])
        return self._attend(q, paged_kv_cache, out, self._indices)


def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: KvPool,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    keys, values = paged_kv_cache
    _int32(batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len)
    assert len(kv_indptr) == len(kv_last_page_len) + 1
    assert append_key.shape[1:] == append_value.shape[1:] == keys.shape[2:]
    assert append_key.dtype == append_value.dtype == keys.dtype
    entries = kv_indptr[batch_indices.long()] + positions // keys.shape[1]
    pages, places = kv_indices[entries.long()].long(), (positions % keys.shape[1]).long()
    keys[pages, places] = append_key
    values[pages, places] = append_value


def rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None, /
) -> torch.Tensor:
    return _norm(x, weight.float(), weight, eps, out)


def gemma_rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None, /
) -> torch.Tensor:
    assert x.ndim == 2
    return _norm(x, weight.float() + 1, weight, eps, out)


def _norm(
    x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None
) -> torch.Tensor:
    assert x.dtype == weight.dtype, "the kernel reads weights as what the input is"
    assert x.ndim in (2, 3)
    assert x.stride(-1) == 1
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * scale
    if out is None:
        return normed.to(x.dtype)
    return out.copy_(normed)


def silu_and_mul(x: torch.Tensor, /) -> torch.Tensor:
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def gelu_tanh_and_mul(x: torch.Tensor, /) -> torch.Tensor:
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)


def apply_rope_with_cos_sin_cache_inplace(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    assert is_neox
    assert cos_sin_cache.dtype == torch.float32
    assert cos_sin_cache.is_contiguous()
    assert positions.is_contiguous()
    assert positions.dtype in (torch.int32, torch.int64)
    cos, sin = cos_sin_cache[positions].chunk(2, -1)
    for heads in (query, key):
        view = heads.view(heads.shape[0], -1, head_size)
        first, second = view.float().chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        view.copy_(torch.cat([first * c - second * s, second * c + first * s], -1))
