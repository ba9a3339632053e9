"""FlashInfer on the simulated GPU: its host code as it is, and in place of what it compiles, the
meaning.

A module that FlashInfer has compiled is asked for by name and has functions; those here take the
same arguments, and check what the compiled ones do.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from simulated_gpu.tensors import GpuTensor, buffers, off_the_device, simulation

CAUSAL, MASKED = 1, 2  # mask modes; 0 is none
GELU = partial(functional.gelu, approximate="tanh")

compiled: set[str] = set()  # modules that were asked for ahead of their use
loaded: set[str] = set()  # modules that were used


def install() -> None:
    """Puts it in place.

    Raises:
        ImportError: if FlashInfer is not installed.
    """
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", tempfile.mkdtemp())
    import flashinfer.jit
    from flashinfer.jit import core, utils

    for names in (utils.dtype_map, utils.filename_safe_dtype_map):
        names[torch.float32] = "float"  # nothing is compiled, so numbers may be exact

    def build(specs: list[Any], *_: Any, **__: Any) -> None:
        compiled.update(spec.name for spec in specs)

    def load(spec: Any) -> Any:
        loaded.add(spec.name)
        return _module(spec.name)

    core.JitSpec.build_and_load = load  # type: ignore[method-assign]  # nothing is compiled
    flashinfer.jit.build_jit_specs = build


def _module(name: str) -> Any:
    if name.startswith("batch_prefill"):
        return SimpleNamespace(plan=_plan_prefill, paged_run=_run_prefill, ragged_run=None)
    if name.startswith("batch_decode"):
        return SimpleNamespace(plan=_plan_decode, run=_run_decode)
    return {
        "page": SimpleNamespace(append_paged_kv_cache=_append),
        "norm": SimpleNamespace(rmsnorm=partial(_norm, 0), gemma_rmsnorm=partial(_norm, 1)),
        "rope": SimpleNamespace(apply_rope_pos_ids_cos_sin_cache=_rotate),
        "quantization": SimpleNamespace(segment_packbits=_segment_packbits),
        "silu_and_mul": SimpleNamespace(silu_and_mul=partial(_gate, functional.silu)),
        "gelu_tanh_and_mul": SimpleNamespace(gelu_tanh_and_mul=partial(_gate, GELU)),
    }[name]


def _launch(name: str, run: Any, reads: list[Any], writes: list[Any]) -> None:
    """Runs a kernel over the numbers of tensors that are all on the device."""
    for tensor in (*reads, *writes):
        assert isinstance(tensor, GpuTensor), f"{name}: a tensor is not on the device"
    with off_the_device():
        run()
    simulation.device.launch(name, buffers([*reads, *writes]), run)


# Small ones


def _int32(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()


def _append(*asked: Any) -> None:
    *given, layout = asked
    assert layout == 0
    k, v, b, p, ks, vs, i, s, e = (t.inner for t in given)
    _int32(b, p, i, s, e)
    assert len(s) == len(e) + 1
    assert k.shape[1:] == v.shape[1:] == ks.shape[2:]
    assert k.dtype == v.dtype == ks.dtype

    def run() -> None:
        pages = i[(s[b.long()] + p // ks.shape[1]).long()].long()
        places = (p % ks.shape[1]).long()
        ks[pages, places], vs[pages, places] = k, v

    _launch("append_paged_kv_cache", run, given, [])


def _norm(added: int, out: Any, x: Any, weight: Any, eps: float, pdl: bool) -> None:
    o, i, w = out.inner, x.inner, weight.inner
    assert i.dtype == w.dtype, "the kernel reads weights as what the input is"
    assert i.ndim in ((2,) if added else (2, 3))
    assert i.stride(-1) == 1

    def run() -> None:
        wide = i.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        o.copy_(wide * scale * (w.float() + added))

    _launch("rmsnorm", run, [x, weight], [out])


def _gate(activation: Callable[..., torch.Tensor], out: Any, x: Any, pdl: bool) -> None:
    o, i = out.inner, x.inner
    assert i.is_contiguous()

    def run() -> None:
        first, second = i.float().chunk(2, -1)
        o.copy_(activation(first) * second)

    _launch("gate", run, [x], [out])


def _rotate(
    q: Any, k: Any, q_out: Any, k_out: Any, table: Any, positions: Any, interleave: bool
) -> None:
    assert not interleave
    assert q_out.inner.data_ptr() == q.inner.data_ptr(), "in place"
    qi, ki, ti, pi = q.inner, k.inner, table.inner, positions.inner
    assert ti.dtype == torch.float32
    assert ti.is_contiguous()
    assert pi.is_contiguous()
    assert pi.dtype in (torch.int32, torch.int64)

    def run() -> None:
        cos, sin = ti[pi][:, None].chunk(2, -1)
        for heads in (each for each in (qi, ki) if each.numel()):
            view = heads.view(heads.shape[0], -1, ti.shape[1])
            first, second = view.float().chunk(2, -1)
            view.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))

    _launch("rope", run, [table, positions], [q, k])


def _segment_packbits(x: Any, starts: Any, packed_starts: Any, bitorder: str, out: Any) -> None:
    assert bitorder == "little"
    xi, si, pi, oi = x.inner, starts.inner, packed_starts.inner, out.inner

    def run() -> None:
        for i in range(len(si) - 1):
            bits = xi[si[i] : si[i + 1]].to(torch.uint8)
            bits = functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
            oi[pi[i] : pi[i + 1]] = (bits << torch.arange(8, dtype=torch.uint8)).sum(
                1, dtype=torch.uint8
            )

    _launch("segment_packbits", run, [x, starts, packed_starts], [out])


# Attention


def _plan(pinned: torch.Tensor, workspace: Any, **plan: Any) -> list[int]:
    """A plan is written to pinned memory and copied from there to the device, in the stream's
    order.
    """
    device, name = simulation.device, f"a plan of {plan['kind']}"
    assert (plan["starts"].diff() > 0).all(), "a sequence without keys"
    for tensor in plan.values():
        if isinstance(tensor, torch.Tensor):
            assert not isinstance(tensor, GpuTensor), f"{name} reads on the host"
            assert tensor.dtype == torch.int32
    assert simulation.pinned(pinned), "the plan's buffer on the host is not pinned"
    assert device.graph is None, "a plan is made while a graph is recorded"
    device.launch(f"{name}'s copy", buffers([workspace]), lambda: None)
    copied = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in plan.items()}
    workspace.buffer.plan = copied
    return [1]


SHAPE = ("heads", "kv_heads", "page_size", "head_dim", "window_left")


def _plan_prefill(*given: Any) -> list[int]:
    _, workspace, pinned, queries, starts, lengths, rows, count, heads, kv_heads = given[:10]
    assert heads % kv_heads == 0
    assert len(queries) == len(starts) == count + 1 == len(lengths) + 1
    assert rows >= int(queries[-1])
    shape = dict(zip(SHAPE, (*given[8:11], given[12], given[15]), strict=True))
    asked = {"queries": queries, "starts": starts, "lengths": lengths}
    return _plan(pinned, workspace, kind="prefill", **asked, **shape)


def _plan_decode(*given: Any) -> list[int]:
    _, workspace, pinned, starts, count, heads, kv_heads = given[:7]
    assert heads // kv_heads in (1, 2, 3, 4, 8), "no such kernel for decoding without tensor cores"
    assert len(starts) == count + 1
    queries = torch.arange(count + 1, dtype=torch.int32)
    shape = dict(zip(SHAPE, (*given[5:8], given[11], given[9]), strict=True))
    return _plan(
        pinned, workspace, kind="decode", queries=queries, starts=starts, lengths=None, **shape
    )


def _run_prefill(*given: Any) -> None:
    scratch, workspace, _, q, keys, values, queries, starts, indices, last, out = given[:11]
    lse, mode, layout, window_left, _, *more = given[11:]
    assert lse is None
    assert layout == 0
    mask = mask_starts = None
    if len(more) == 11:  # the second generation
        mask, mask_starts, _, _, _, _, softcap, scale = more[:8]
    else:
        assert mode != MASKED, "the third generation knows no masks"
        _, _, _, _, softcap, scale, _, _ = more
    assert (mask is not None) == (mode == MASKED)
    of = (scratch, workspace, q, keys, values, queries, starts, indices, last, out)
    told = {"causal": mode == CAUSAL, "softcap": softcap, "scale": scale}
    _attend("prefill", of, (mask, mask_starts), {**told, "window_left": window_left})


def _run_decode(*given: Any) -> None:
    scratch, workspace, _, q, keys, values, starts, indices, last, out = given[:10]
    lse, layout, window_left, _, _, softcap, scale = given[10:17]
    assert lse is None
    assert layout == 0
    of = (scratch, workspace, q, keys, values, None, starts, indices, last, out)
    told = {"causal": False, "softcap": softcap, "scale": scale}
    _attend("decode", of, (None, None), {**told, "window_left": window_left})


def _attend(kind: str, of: tuple[Any, ...], masks: tuple[Any, Any], told: dict[str, Any]) -> None:
    """Attention by the plan in the workspace, as it is when the kernel runs."""
    scratch, workspace, *reads, out = *of[:2], *of[2:9], *masks, of[9]
    inner: list[Any] = [None if t is None else t.inner for t in reads]
    qi, ki, vi, ui, si, ii, li, mi, bi = inner
    oi, buffer = out.inner, workspace.buffer
    _int32(si, ii, li)
    assert ki.stride() == vi.stride()
    assert ki.stride(-1) == qi.stride(-1) == 1
    assert oi.is_contiguous()
    assert oi.shape == qi.shape

    def run() -> None:
        plan = buffer.plan
        assert plan is not None, "run before plan"
        assert plan["kind"] == kind
        assert plan["window_left"] == told["window_left"]
        assert qi.shape[1:] == (plan["heads"], plan["head_dim"])
        assert ki.shape[1:] == (plan["page_size"], plan["kv_heads"], plan["head_dim"])
        assert torch.equal(si, plan["starts"]), "the table is not the one that was planned"
        assert ui is None or torch.equal(ui, plan["queries"])
        for i in range(len(li)):
            start, end = si[i : i + 2].tolist()
            length = (end - start - 1) * plan["page_size"] + int(li[i])
            assert plan["lengths"] is None or length == int(plan["lengths"][i])
            own = slice(*plan["queries"][i : i + 2].tolist())
            pages = ii[start:end].long()
            rows = own.stop - own.start
            seen = None
            if mi is not None:
                octets = mi[bi[i] : bi[i + 1]]
                bits = (octets[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
                seen = bits.view(-1)[: rows * length].view(rows, length).bool()
            oi[own] = _attention(
                qi[own].float(),
                ki[pages].flatten(0, 1)[:length].float(),
                vi[pages].flatten(0, 1)[:length].float(),
                {**plan, **told},
                seen,
            ).to(oi.dtype)

    _launch(kind, run, [workspace, *(t for t in reads if t is not None)], [out, scratch])


def _attention(q: Any, keys: Any, values: Any, plan: dict[str, Any], mask: Any) -> torch.Tensor:
    """`[queries, heads, head_dim]`."""
    group = plan["heads"] // plan["kv_heads"]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * plan["scale"]
    if plan["softcap"]:
        scores = plan["softcap"] * torch.tanh(scores / plan["softcap"])
    # Queries are the last of the keys.
    place = torch.arange(len(keys) - len(q), len(keys))[:, None]
    key = torch.arange(len(keys))[None, :]
    seen = mask
    if mask is None:
        seen = key <= (place if plan["causal"] else len(keys))
    seen = seen.expand(len(q), -1).clone()
    if plan["window_left"] >= 0:
        seen &= key + plan["window_left"] >= place
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, values)
