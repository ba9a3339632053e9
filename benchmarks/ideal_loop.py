"""A monolithic decode loop at its best: the peer `ideal` of `compare`.

A hand-written PyTorch loop with a static cache, one model, one batch of equal lengths, greedy, no
server, no tokens leaving the process. A process of its own (`benchmarks.peers`).

Its matrix products are the worker's own (`pie_inference.layers.linear`), with weights laid out
once: `F.linear` packs bfloat16 weights in every call, which would flatter us.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nnf
from safetensors.torch import load_file

from pie_inference.layers.linear import Linear, linear

Tensor = torch.Tensor
Layer = tuple[Tensor, Linear, Linear, Tensor, Linear, Linear]  # norm, qkv, out, norm, gate-up, down


class IdealLlama:
    """A Llama without options: fused projections, static cache, RoPE from a table."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights.update(load_file(file))
        self.hidden: int = config["hidden_size"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config.get("num_key_value_heads") or self.heads
        self.head_dim: int = config.get("head_dim") or self.hidden // self.heads
        self.eps: float = config["rms_norm_eps"]
        self.vocab: int = config["vocab_size"]
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = linear(weights.get("lm_head.weight", self.embedding))
        self.norm = weights["model.norm.weight"]
        self.layers = [
            self._layer(weights, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])
        ]
        theta = (config.get("rope_parameters") or {}).get("rope_theta") or config.get(
            "rope_theta", 10000.0
        )
        inverse = 1 / theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(max_tokens).float(), inverse)
        self.cos = torch.cat([angles.cos()] * 2, -1).to(self.embedding.dtype)
        self.sin = torch.cat([angles.sin()] * 2, -1).to(self.embedding.dtype)
        self.max_tokens = max_tokens

    @staticmethod
    def _layer(weights: dict[str, Tensor], p: str) -> Layer:
        gate_up = [weights[p + "mlp.gate_proj.weight"], weights[p + "mlp.up_proj.weight"]]
        return (
            weights[p + "input_layernorm.weight"],
            linear(torch.cat([weights[f"{p}self_attn.{x}_proj.weight"] for x in "qkv"])),
            linear(weights[p + "self_attn.o_proj.weight"]),
            weights[p + "post_attention_layernorm.weight"],
            linear(torch.cat(gate_up)),
            linear(weights[p + "mlp.down_proj.weight"]),
        )

    def new_cache(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, `[batch, kv_heads, max_tokens, head_dim]`."""
        shape = (batch, self.kv_heads, self.max_tokens, self.head_dim)
        dtype = self.embedding.dtype
        return [
            (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in self.layers
        ]

    def step(self, tokens: Tensor, cache: list[tuple[Tensor, Tensor]], start: int) -> Tensor:
        """Logits `[batch, vocab]` after tokens `[batch, t]` at positions `start` and on."""
        batch, t = tokens.shape
        end = start + t
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = nnf.embedding(tokens.reshape(-1), self.embedding)  # [batch * t, hidden]
        for (norm1, qkv, out, norm2, gate_up, down), (keys, values) in zip(
            self.layers, cache, strict=True
        ):
            y = qkv(nnf.rms_norm(x, (self.hidden,), norm1, self.eps))
            y = y.view(batch, t, -1, self.head_dim).transpose(1, 2)
            q, k, v = torch.split(y, [self.heads, self.kv_heads, self.kv_heads], 1)
            keys[:, :, start:end] = k * cos + _rotated(k) * sin
            values[:, :, start:end] = v
            attended = nnf.scaled_dot_product_attention(
                q * cos + _rotated(q) * sin,
                keys[:, :, :end],
                values[:, :, :end],
                is_causal=t > 1,
                enable_gqa=True,
            )
            x = out.add_to(x, attended.transpose(1, 2).reshape(batch * t, -1))
            gate, up = gate_up(nnf.rms_norm(x, (self.hidden,), norm2, self.eps)).chunk(2, -1)
            x = down.add_to(x, nnf.silu(gate) * up)
        last = x.view(batch, t, -1)[:, -1]
        return self.head(nnf.rms_norm(last, (self.hidden,), self.norm, self.eps))


def _rotated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def generate(model: IdealLlama, prompts: Tensor, tokens: int) -> tuple[float, float]:
    """Continues prompts `[batch, t]` greedily; seconds for all, and ms of a decode step."""
    batch, length = prompts.shape
    cache = model.new_cache(batch)
    start = time.perf_counter()
    logits = model.step(prompts, cache, 0)
    first = time.perf_counter()
    for i in range(tokens - 1):
        logits = model.step(logits.argmax(-1, keepdim=True), cache, length + i)
    end = time.perf_counter()
    return end - start, (end - first) / max(1, tokens - 1) * 1e3


def main() -> None:
    """Answers requests on standard input until its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--max-tokens", type=int, default=1024, help="prompt and new ones together")
    parser.add_argument("--threads", type=int, help="all cores unless given")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with torch.inference_mode():
        model = IdealLlama(options.checkpoint, options.max_tokens)
        print(json.dumps({"ready": f"torch {torch.__version__}"}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            prompts = torch.tensor(request["prompts"])
            # What is not used for a second may have left the memory.
            generate(model, prompts[:1], 4)
            seconds, step = generate(model, prompts, request["tokens"])
            print(json.dumps({"seconds": seconds, "ms_a_token": step}), flush=True)


if __name__ == "__main__":
    main()
