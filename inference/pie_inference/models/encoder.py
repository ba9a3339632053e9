"""Encoders: transformers' own modules over the rows of many texts at once, without a KV pool.

The tokens of all texts are one row after the other, so that no product has a row of padding; our
attention function, registered with transformers, has each text look at itself alone. A class that
does not go through that function, or adds positions of its own, is run length by length instead:
which it is, a trial of two texts says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog
import torch
from torch import nn
from torch.nn.functional import normalize, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from pie_inference.device import Int32, upload, upload_index
from pie_inference.layers.linear import Linear, for_many_rows
from pie_inference.models.by_transformers.interface import Given

log = structlog.get_logger("pie.worker.load")

ATTENTION = "pie_rows"
# Of what a text's numbers are made, by sentence-transformers' names.
POOLED = {"mean": "mean", "cls": "first", "lasttoken": "last"}
ACTIVATIONS = ("none", "sigmoid", "softmax")
TRIAL = (3, 8)  # tokens of the texts of a trial
SAME = 1e-3  # of the largest number: what rounding leaves apart, in bfloat16 too


@dataclass(frozen=True, slots=True)
class Finish:
    """The heads that turn the hidden states of a text into an answer."""

    pooled: str = "mean"  # a value of `POOLED`; of a model without a head
    normalized: bool = False
    activation: str = "none"  # of `ACTIVATIONS`, of a head's numbers


@dataclass(frozen=True, slots=True)
class Group:
    """Texts of one length, rows `first .. first + count * length` of a batch."""

    first: int
    count: int
    length: int


class Encoder:
    """A module of transformers, with a head or without, and what becomes of its hidden states."""

    def __init__(self, module: Any, finish: Finish, window: int = 0) -> None:
        """Takes a module, on its device; a trial has more tokens than an attention `window`."""
        self.finish = finish
        self.base: Any = module.base_model
        self.has_head = self.base is not module
        self.device, self.dtype = self.base.device, self.base.dtype
        self.between_layers: Callable[[], None] = lambda: None
        config = module.config.get_text_config()
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = -1  # heads look for it, and nothing is padded here
        self._module = module
        self.first = _first_position(self.base)
        if self.device.type == "cpu":
            _pack(module)
        self.by_rows = False
        self.by_rows = self._is_exact_by_rows(window)

    def run(self, tokens: Int32, starts: Int32, seconds: Int32, raw: Int32) -> torch.Tensor:
        """The numbers `[n, width]`, float32, of `n` texts: tokens `[t]` from `starts` `[n + 1]` on;
        from `seconds` `[n]` on they are of a pair's second text (-1: none); `raw` `[n]`, not 0,
        wants no normalization and no activation.
        """
        lengths = np.diff(starts)
        order = np.argsort(lengths, kind="stable")
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
        places = np.concatenate([np.arange(length) for length in lengths[order]])
        split = np.where(seconds < 0, lengths, seconds)[order].repeat(lengths[order])
        inputs = {"input_ids": tokens[rows], "position_ids": places + self.first}
        if int(getattr(self.base.config, "type_vocab_size", 0) or 0) > 1:
            inputs["token_type_ids"] = places >= split
        there = {name: upload_index(array, self.device) for name, array in inputs.items()}
        groups = _groups(lengths[order].tolist())
        found = self._by_rows(there, groups) if self.by_rows else self._by_length(there, groups)
        back = upload_index(np.argsort(order, kind="stable"), self.device)
        return self._finished(found.float()[back], upload(raw != 0, self.device))

    def _by_length(self, inputs: dict[str, torch.Tensor], groups: list[Group]) -> torch.Tensor:
        """Texts of one length at a time, as transformers does without padding."""
        found = []
        for group in groups:
            # It counts positions itself.
            some = {k: _of(group, v) for k, v in inputs.items() if k != "position_ids"}
            answer = self._module(**some)
            found.append(answer.logits if self.has_head else self._pooled(answer.last_hidden_state))
        return torch.cat(found)

    def _by_rows(self, inputs: dict[str, torch.Tensor], groups: list[Group]) -> torch.Tensor:
        """All texts in one row, each of which attends to itself."""
        with _attending(self.base, groups, self.between_layers):
            whole = {name: value[None] for name, value in inputs.items()}
            hidden = self.base(**whole).last_hidden_state[0]
        each = [_of(group, hidden) for group in groups]
        if not self.has_head:
            return torch.cat([self._pooled(states) for states in each])
        found = []
        place, given = self._module.base_model_prefix, Given(self.base)
        pooler = getattr(self.base, "pooler", None)
        for group, states in zip(groups, each, strict=True):
            # The head's own code, on hidden states that are there already.
            given.output = states, None if pooler is None else pooler(states)
            setattr(self._module, place, given)
            try:
                found.append(self._module(input_ids=_of(group, inputs["input_ids"])).logits)
            finally:
                setattr(self._module, place, self.base)
        return torch.cat(found)

    def _pooled(self, states: torch.Tensor) -> torch.Tensor:
        """Of hidden states `[n, length, hidden]`."""
        if self.finish.pooled == "mean":
            return states.float().mean(1)
        return states[:, 0 if self.finish.pooled == "first" else -1].float()

    def _finished(self, found: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        done = normalize(found, dim=1) if self.finish.normalized else found
        if self.finish.activation == "sigmoid":
            done = found.sigmoid()
        if self.finish.activation == "softmax":
            done = found.softmax(1)
        return torch.where(raw[:, None], found, done)

    def _is_exact_by_rows(self, window: int) -> bool:
        """True if two texts in one row have the numbers that each has alone."""
        lengths = [TRIAL[0], max(TRIAL[1], window + 2)]
        config = self.base.config.get_text_config()
        tokens = (np.arange(sum(lengths), dtype=np.int32) * 7919 + 11) % config.vocab_size
        tokens[tokens == config.pad_token_id] += 1  # RoBERTa does not count it
        texts = tokens % config.vocab_size, np.cumsum([0, *lengths], dtype=np.int32)
        given = (*texts, np.full(2, -1, np.int32), np.ones(2, np.int32))
        alone = self.run(*given)
        self.by_rows = True
        try:
            apart = (self.run(*given) - alone).abs().max() / alone.abs().max().clamp(min=1e-6)
        except Exception as error:  # noqa: BLE001  a class that takes no positions, or the like
            log.info("an encoder is run length by length", reason=str(error)[:200])
            return False
        exact = float(apart) < (SAME if self.dtype == torch.float32 else 50 * SAME)
        if not exact:
            log.info("an encoder is run length by length", apart=float(apart))
        return exact


class _Product(nn.Module):
    """In the place of a linear layer."""

    def __init__(self, product: Linear) -> None:
        super().__init__()
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def _pack(module: nn.Module) -> None:
    """Packs linear layers' weights once, which PyTorch would do in each call."""
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, _Product(for_many_rows(child.weight.detach(), child.bias)))
        else:
            _pack(child)


def _groups(lengths: list[int]) -> list[Group]:
    groups: list[Group] = []
    first = 0
    for length in dict.fromkeys(lengths):
        count = lengths.count(length)
        groups.append(Group(first, count, length))
        first += count * length
    return groups


def _of(group: Group, rows: torch.Tensor) -> torch.Tensor:
    """The rows of a group, `[count, length, ...]`."""
    end = group.first + group.count * group.length
    return rows[group.first : end].reshape(group.count, group.length, *rows.shape[1:])


def _first_position(base: nn.Module) -> int:
    """Position of a text's first token: RoBERTa's begin behind the padding's."""
    for part in base.modules():
        if hasattr(part, "create_position_ids_from_input_ids"):
            return int(part.padding_idx) + 1  # type: ignore[arg-type]
    return 0


@dataclass(slots=True)
class _Attended:
    """The tokens that the forward that runs attends to: a worker runs one at a time."""

    groups: list[Group] = field(default_factory=list)
    between_layers: Callable[[], None] = lambda: None


_NOW = _Attended()


@contextmanager
def _attending(base: Any, groups: list[Group], between: Callable[[], None]) -> Iterator[None]:
    """Within it a module attends by rows of groups."""
    before = base.config._attn_implementation
    base.set_attn_implementation(ATTENTION)
    _NOW.groups, _NOW.between_layers = groups, between
    try:
        yield
    finally:
        base.set_attn_implementation(before)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: of queries, keys and values `[1, heads, t, width]`, each
    text within itself, `[1, t, heads, width]`.
    """
    if other.get("softcap") is not None or other.get("s_aux") is not None:
        raise NotImplementedError("attention with caps or sinks")
    _NOW.between_layers()
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    parts = []
    for group in _NOW.groups:
        q, k, v = (
            _of(group, each[0].transpose(0, 1)).transpose(1, 2) for each in (query, key, value)
        )
        mask = None
        if sliding_window is not None and group.length > sliding_window:
            at = torch.arange(group.length, device=q.device)
            apart = at[:, None] - at[None]
            mask = (apart.abs() < sliding_window) & (apart >= 0 if causal else apart == apart)
        found = scaled_dot_product_attention(
            *(q, k, v, mask),
            is_causal=causal and mask is None,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        parts.append(found.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None], None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
