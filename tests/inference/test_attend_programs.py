"""Programs that choose what layers read, held to attention in plain numbers over the same tokens.

The plain attention takes its policy from the reference of device programs, with state in lists, so
that neither bounds of keys, nor weights, nor what is kept from step to step are the worker's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.device_reference import AttendRow, run_attend
from support.model_rig import (
    Checkpoints,
    Rig,
    Step,
    Stream,
    assert_close,
    expected_logits,
    tokens_of,
)
from support.programs_read import set_samplers, text_of, values_of

from inferlet import Sampler, attention, device
from inferlet.device import Attend, State, Tensor
from pie_inference import handlers
from pie_inference.attention import AttentionBackend, AttentionOptions, PreparedAttention, observed
from pie_inference.attention.sequences import Sequences
from pie_inference.errors import BadBatch
from pie_py.device_programs.program import Program, program_for

VOCABULARY = 300
TOKENS = tokens_of(240, seed=9)
PROMPT = 100


@device.attend
def by_layer(scores: Tensor) -> Tensor:
    """Heads of a layer together."""
    best = scores.softmax().transpose().max().top(3)
    return (device.iota(device.PAGES) < 0).scatter_max(best, True)


@device.attend
def by_place_and_head() -> Tensor:
    """Each head has another part of the tokens."""
    head = device.iota(device.HEADS).reshape(device.HEADS, 1)
    place = device.iota(device.TOKENS)
    return (place % 4 == head % 4) | (place >= device.tokens() - 5)


@device.attend
def pages_by_place(scores: Tensor) -> Tensor:
    """What it is given it does not read."""
    place = device.iota(device.PAGES)
    return (place == 0) | (place % 2 == device.layer() % 2)


@device.attend(window=8)
def heads_forget(weights: Tensor, state: State) -> Tensor:
    """State of both kinds, by head and for all of them."""
    state.faded = state.faded * 0.5 + weights
    state.seen += 1
    return (state.faded > 0.004) | (state.seen < 4)


POLICIES: dict[str, Callable[[], Attend]] = {
    "quest": lambda: attention.quest(pages=3, full_layers=1),
    "quest by layer": by_layer,
    "quest together": lambda: attention.quest(pages=2, full_layers=0, together=True),
    "quest, more than there are": lambda: attention.quest(pages=64, full_layers=0),
    "h2o": lambda: attention.h2o(heavy=12, recent=6),
    "h2o together": lambda: attention.h2o(heavy=12, recent=6, together=True),
    "snapkv": lambda: attention.snapkv(budget=14, window=4, kernel=5),
    "tova": lambda: attention.tova(budget=20),
    "sinks": lambda: attention.sinks(first=3, window=21),
    "by place and head": by_place_and_head,
    "pages by place": pages_by_place,
    "heads forget": lambda: heads_forget(
        faded=device.per_token(0.0, by_head=True), seen=device.per_token(0)
    ),
}
# By pages with bounds of keys, with sums, by what was dropped, without either, with state by head.
KINDS = ["quest", "h2o", "h2o together", "snapkv", "sinks", "heads forget"]
FAMILIES = ["llama", "mistral", "gemma2", "qwen3", "gptoss"]  # windows, caps, sinks


def in_turn(policies: Iterable[str], families: Sequence[str], each: int) -> list[tuple[str, str]]:
    """Each policy with so many of the families, which come in turn."""
    count = len(families)
    return [
        (policy, families[(each * number + other) % count])
        for number, policy in enumerate(policies)
        for other in range(each)
    ]


def put(rig: Rig, programs: dict[int, Attend]) -> None:
    """Greedy samplers with programs of the stage `attend`."""
    batch = set_samplers(
        [Sampler(temperature=0.0)] * len(programs),
        VOCABULARY,
        slots=list(programs),
        attends=list(programs.values()),
    )
    with torch.inference_mode():
        handlers.samplers.set_sampler(rig.model, batch)


def with_policies(folder: Path, *names: str) -> Rig:
    """A model whose first samplers have policies."""
    rig = Rig(folder)
    put(rig, {slot: POLICIES[name]() for slot, name in enumerate(names)})
    return rig


def decode(rig: Rig, text: Stream, count: int, sampler: int = 0, first: int = 1) -> torch.Tensor:
    """Logits `[count, vocab]` after each of some tokens, one forward each."""
    found = []
    for step in range(first, first + count):
        token = TOKENS[text.used]
        found += rig.forward(Step(text, [token], attends=sampler, attend_step=step))
    return torch.cat(found)


@dataclass
class Plain:
    """A policy's state, of each layer."""

    program: Program
    given: dict[str, Any]
    left: dict[int, list[list[bool]]] = field(default_factory=dict)  # of each head
    state: dict[int, dict[str, Any]] = field(default_factory=dict)
    step: int = 0


class PlainAttention(PreparedAttention):
    """Attention of one row, key by key."""

    def __init__(self, rig: Rig, sequences: Sequences, inner: PreparedAttention, plain: Plain):
        self._rig, self._inner, self._plain = rig, inner, plain
        self._slots = [*sequences.context_slots.tolist(), *sequences.input_slots.tolist()]
        self._positions = sequences.positions.tolist()

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        self._inner.store(layer, keys_values)

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        plain = self._plain
        plain.step += layer == 0
        query = queries[0].double()
        count, page = len(self._slots), self._rig.page_size
        keys, values, scale = self._keys_values(layer, queries)
        pages = -(-count // page)
        uses = plain.program.uses
        left = [
            row + [True] * (count - len(row)) for row in plain.left.get(layer, [[]] * len(query))
        ]
        if not uses("weights"):
            parts = [keys[i * page : (i + 1) * page] for i in range(pages)]
            bounds = [
                torch.maximum(query * part.amin(0), query * part.amax(0)).sum(-1) * scale
                for part in parts
            ]
            bounds[-1] = torch.full_like(bounds[-1], -math.inf)
            kept = self._run(layer, torch.stack(bounds, 1).float().tolist(), count, pages)
            heads = np.array(kept)
            heads[:, -1] = True
            left = [
                row[np.arange(count) // page] if plain.program.keeps_pages else row for row in heads
            ]
        seen = torch.tensor(np.array(left))
        weights = self._weights(layer, queries, seen[:, None], sinks)[:, 0]
        if uses("weights"):
            kept = self._run(layer, weights.float().tolist(), count, pages)
            plain.left[layer] = (np.array(kept) & left).tolist()
        return torch.einsum("ht,thd->hd", weights, values).reshape(1, -1).to(queries.dtype)

    def _keys_values(
        self, layer: int, queries: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Of each query's head `[tokens, heads, head_dim]`, and the scale of scores."""
        cache = self._rig.model.cache
        options: AttentionOptions = self._rig.model.network.shape.attention[layer]
        both = cache.split(cache.rows[layer][self._slots]).double()
        keys, values = both.repeat_interleave(queries.shape[1] // both.shape[2], 2).unbind(1)
        return keys, values, options.scale or queries.shape[-1] ** -0.5

    def _weights(
        self, layer: int, queries: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """Of queries that see `[heads, queries, tokens]`, of the same sizes."""
        options: AttentionOptions = self._rig.model.network.shape.attention[layer]
        keys, _, scale = self._keys_values(layer, queries)
        scores = torch.einsum("qhd,thd->hqt", queries.double(), keys) * scale
        if options.window is not None:
            positions = self._rig.model.cache.positions[self._slots]
            own = np.array(self._positions)[:, None]
            seen = seen & torch.from_numpy(positions > own - options.window)
        if options.softcap is not None:
            scores = options.softcap * (scores / options.softcap).tanh()
        scores = scores.masked_fill(~seen, -math.inf)
        if sinks is not None:
            beside = sinks.double()[:, None, None].expand(*scores.shape[:2], 1)
            scores = torch.cat((scores, beside), 2)
        return scores.softmax(-1)[:, :, : len(self._slots)]

    def _run(
        self, layer: int, given: list[list[float]], tokens: int, pages: int
    ) -> list[list[bool]]:
        """What each head keeps, or one of those that share its keys."""
        plain = self._plain
        sharing = len(given) // self._rig.model.network.shape.kv_heads
        row = AttendRow(given, tokens, pages, layer, plain.step, sharing)
        fresh = dict(plain.given)
        state = plain.state.get(layer, fresh)
        whole = {
            name: _of_size(value, fresh[name], tokens, len(given)) for name, value in state.items()
        }
        found, plain.state[layer] = run_attend(plain.program, row, whole)
        by_head = found if isinstance(found[0], list) else [found] * len(given)
        groups = [by_head[i - i % sharing :][:sharing] for i in range(len(by_head))]
        return [[any(column) for column in zip(*group, strict=True)] for group in groups]


def _of_size(value: Any, fresh: Any, tokens: int, heads: int) -> Any:
    """State of so many tokens, perhaps of each head, of which new ones have what was given."""
    if not isinstance(value, list):
        return value
    if isinstance(value[0], list):
        rows = value * heads if len(value) == 1 else value
        return [_of_size(row, fresh[0], tokens, heads) for row in rows]
    return (value + fresh * tokens)[:tokens]


class PlainPrompt(PlainAttention):
    """Attention as ever, of which a policy is told in plain numbers, all inputs at once."""

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        window = self._plain.program.window
        if window is not None:
            inputs, count = len(queries), len(self._slots)
            seen = torch.ones(inputs, count, dtype=torch.bool).tril(count - inputs)
            weights = self._weights(layer, queries, seen.expand(queries.shape[1], -1, -1), sinks)
            sums = weights[:, -window:].sum(1).float().tolist()
            pages = -(-count // self._rig.page_size)
            self._plain.left[layer] = self._run(layer, sums, count, pages)
        return self._inner.attend(layer, queries, sinks)


class PlainBackend(AttentionBackend):
    """Attention as ever for prompts, and plain for one input."""

    def __init__(self, rig: Rig, policy: Attend) -> None:
        self._rig, self._inner = rig, rig.model.attention
        self._plain = Plain(program_for(text_of(policy), VOCABULARY), values_of(policy))

    def prepare(self, sequences: Sequences, ordered: bool = False) -> PreparedAttention:
        inner = self._inner.prepare(sequences)
        kind = PlainPrompt if sequences.input_slots.size > 1 else PlainAttention
        return kind(self._rig, sequences, inner, self._plain)


def plain_rig(folder: Path, policy: Attend) -> Rig:
    rig = Rig(folder)
    object.__setattr__(rig.model, "attention", PlainBackend(rig, policy))
    object.__setattr__(rig.model, "fused_steps", None)
    return rig


def begun(rig: Rig, told: int = 0, parts: tuple[int, ...] = (PROMPT,)) -> Stream:
    """A prompt in parts, of which a sampler's program is told; of -1 none."""
    text = rig.sequence(200)
    for count in parts:
        outputs = int(text.used + count == PROMPT)
        rig.forward(
            Step(text, TOKENS[text.used : text.used + count], attends=told, outputs=outputs)
        )
    return text


def decode_plainly(folder: Path, policy: Attend, count: int) -> torch.Tensor:
    rig = plain_rig(folder, policy)
    text = begun(rig, told=-1)
    return torch.cat([rig.forward(Step(text, [TOKENS[text.used]]))[0] for _ in range(count)])


def assert_plain(rig: Rig, folder: Path, policy: str, parts: tuple[int, ...] = (PROMPT,)) -> None:
    """A policy reads what it reads in plain numbers."""
    put(rig, {0: POLICIES[policy]()})
    found = decode(rig, begun(rig, parts=parts), 24)
    assert_close(found, decode_plainly(folder, POLICIES[policy](), 24))


@pytest.mark.parametrize(("policy", "family"), in_turn(POLICIES, FAMILIES, 1))
def test_a_policy_is_as_in_plain_numbers(checkpoint: Checkpoints, family: str, policy: str) -> None:
    folder = checkpoint(family)
    assert_plain(Rig(folder), folder, policy)


@pytest.mark.parametrize("policy", ["quest", "sinks", "h2o", "tova", "by place and head"])
def test_a_policy_without_the_compiled_kernel(checkpoint: Checkpoints, policy: str) -> None:
    folder = checkpoint("mistral")
    rig = Rig(folder)
    assert rig.model.row_attention is not None
    object.__setattr__(rig.model, "row_attention", None)
    assert_plain(rig, folder, policy)


def test_policies_change_what_is_read(checkpoint: Checkpoints) -> None:
    folder = checkpoint("llama")
    whole = expected_logits(folder, TOKENS[: PROMPT + 12])[-1]
    for name in POLICIES:
        rig = with_policies(folder, name)
        differs = (decode(rig, begun(rig), 12)[-1] - whole).abs().max().item()
        assert (differs < 1e-4) is (name == "quest, more than there are"), name


@pytest.mark.parametrize("parts", [(40, 60), (57, 40, 2, 1)], ids=str)
@pytest.mark.parametrize(
    ("policy", "family"),
    in_turn(["h2o", "h2o together", "snapkv", "tova", "heads forget"], FAMILIES, 1),
)
def test_a_prompt_that_comes_in_parts(
    checkpoint: Checkpoints,
    family: str,
    parts: tuple[int, ...],
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a whole one, of whose inputs the last ones are in several parts; in blocks of queries."""
    monkeypatch.setattr(observed, "MAX_SCORES", 4 * PROMPT * 7)
    folder = checkpoint(family)
    assert_plain(Rig(folder), folder, policy, parts)


def test_a_prompt_that_begins_again(checkpoint: Checkpoints) -> None:
    """Nothing of what ran before counts: of another place, or of a sampler that has chosen."""
    rig = with_policies(checkpoint("llama"), "h2o")
    text = begun(rig)
    wanted = decode(rig, text, 6)
    for parts in ((30,), (70, 20), (PROMPT,)):
        text = begun(rig, parts=parts)
    assert torch.equal(decode(rig, text, 6), wanted)


def test_a_prompt_reads_all(checkpoint: Checkpoints) -> None:
    folder = checkpoint("mistral")
    rig = with_policies(folder, "h2o")
    text = rig.sequence(200)
    for first in (0, 50):
        step = Step(text, TOKENS[first : first + 50], outputs=50, attends=0)
        assert_close(rig.forward(step)[0], expected_logits(folder, TOKENS[:PROMPT])[first:][:50])


def test_what_hidden_tokens_are_given(checkpoint: Checkpoints) -> None:
    """Nothing, of the inputs behind their being hidden; each input gives 1 in all."""
    rig = with_policies(checkpoint("llama"), "h2o")
    text = begun(rig, parts=(60,))
    (before,) = sums_of(rig, 0)
    hidden = [0, 7, 31]
    rig.mask(text, hidden)
    rig.forward(Step(text, TOKENS[60:PROMPT], attends=0, masked=True))
    (after,) = sums_of(rig, 0)
    heads = rig.model.network.shape.heads
    assert torch.equal(after[hidden], before[hidden])
    torch.testing.assert_close(before.sum(), torch.tensor(60.0 * heads))
    torch.testing.assert_close(after.sum(), torch.tensor(float(PROMPT * heads)))


def sums_of(rig: Rig, sampler: int) -> list[torch.Tensor]:
    """The state of the first layer after a program's newest step, of all heads together."""
    values = rig.model.samplers.attend_programs.of[sampler].versions[-1].values[0]
    return [value[0].sum(0) for value in values.values()]


def test_rows_beside_each_other(checkpoint: Checkpoints) -> None:
    """Rows with programs, with others, and with none, prompts among them, in one batch."""
    folder = checkpoint("mistral")
    rig = Rig(folder, pages=128)
    names = ["quest", "h2o", "sinks"]
    put(rig, {7 + i: POLICIES[name]() for i, name in enumerate([*names, "h2o"])})
    texts = [begun(rig, told=7 + i) for i in range(3)]
    plain, other, told = begun(rig, told=-1), rig.sequence(80), rig.sequence(200)
    wanted = [decode_plainly(folder, POLICIES[name](), 9) for name in names]
    of_plain = expected_logits(folder, TOKENS[: PROMPT + 9])
    of_other = expected_logits(folder, TOKENS[: 9 * 5])
    for step in range(9):
        token = [TOKENS[PROMPT + step]]
        rows = [
            Step(text, token, attends=7 + i, attend_step=1 + step) for i, text in enumerate(texts)
        ]
        prompt = Step(other, TOKENS[5 * step : 5 * step + 5], outputs=2)
        end = PROMPT if step == 8 else 12 * step + 12
        part = Step(told, TOKENS[told.used : end], attends=10)
        found = rig.forward(part, rows[0], Step(plain, token), rows[1], prompt, rows[2])[1:]
        for own, each in zip((found[0], found[2], found[4]), wanted, strict=True):
            assert_close(own[0], each[step])
        assert_close(found[1][0], of_plain[PROMPT + step])
        assert_close(found[3], of_other[5 * step + 3 : 5 * step + 5])
    assert_close(decode(rig, told, 9, sampler=10), wanted[1])


@pytest.mark.parametrize(("policy", "family"), in_turn(POLICIES, ["llama", "mistral", "qwen3"], 1))
def test_between_two_halves_of_each_layer(
    checkpoint: Checkpoints, family: str, policy: str
) -> None:
    """Steps in one call give what steps by layers do, with a row of another text beside it."""

    def decoded(is_fused: bool) -> torch.Tensor:
        rig = Rig(checkpoint(family), quantize="int8")
        assert rig.model.fused_steps is not None
        if not is_fused:
            object.__setattr__(rig.model, "fused_steps", None)
        put(rig, {0: POLICIES[policy]()})
        text, other = begun(rig, parts=(57, 43)), begun(rig, told=-1)
        found = []
        for step in range(12):
            token = [TOKENS[PROMPT + step]]
            rows = Step(other, token), Step(text, token, attends=0, attend_step=1 + step)
            found += rig.forward(*rows)
        return torch.cat(found)

    assert_close(decoded(True), decoded(False), few_bits=True)


# What is not chosen is not read


@device.attend
def first_and_fourth_page(scores: Tensor) -> Tensor:
    place = device.iota(device.PAGES)
    return (scores.max().max() > -1e9) & ((place == 0) | (place == 3))


def poison(rig: Rig, slots: list[int]) -> None:
    with torch.inference_mode():
        rig.model.cache.data[:, slots] = math.nan


def test_pages_that_are_not_chosen_are_not_read(checkpoint: Checkpoints) -> None:
    rig = Rig(checkpoint("llama"))
    put(rig, {0: first_and_fourth_page()})
    text = begun(rig)
    decode(rig, text, 1)  # which finds the bounds of keys
    (wanted,) = rig.forward(Step(text, [5], attends=0, attend_step=2, keep=True))
    text.used -= 1
    others = [i for i in range(96) if i // 16 not in (0, 3)]
    poison(rig, text.slots(0, 101)[16:48] + [text.slots(0, 101)[i] for i in others])
    (found,) = rig.forward(Step(text, [5], attends=0, attend_step=2))
    assert torch.equal(found, wanted)
    poison(rig, text.slots(3, 4))
    assert rig.forward(Step(text, [5], attends=0, attend_step=3))[0].isnan().any()


@pytest.mark.parametrize("policy", ["sinks", "tova", "h2o", "h2o together", "snapkv"])
def test_tokens_that_were_dropped_are_not_read(checkpoint: Checkpoints, policy: str) -> None:
    def last(rig: Rig, *, poisoned: bool) -> torch.Tensor:
        put(rig, {0: POLICIES[policy]()})
        text = begun(rig)
        decode(rig, text, 3)
        slots = np.array(text.slots(0, text.used))
        if poisoned and policy == "sinks":
            poison(rig, slots[3:-20].tolist())
        elif poisoned:
            kv_heads = rig.model.network.shape.kv_heads
            for layer, kept in rig.model.samplers.attend_programs.of[0].versions[-1].kept.items():
                for head, gone in enumerate(
                    (~kept.view(-1, kept.shape[-1])).expand(kv_heads, -1).numpy()
                ):
                    assert gone.sum() > 50
                    with torch.inference_mode():
                        rig.model.cache.data[layer, slots[: len(gone)][gone], :, head] = math.nan
        return decode(rig, text, 1, first=4)

    folder = checkpoint("llama")
    assert torch.equal(last(Rig(folder), poisoned=True), last(Rig(folder), poisoned=False))


# Pages that move, texts that go back, samplers that are made anew


@pytest.mark.parametrize("policy", KINDS)
def test_undone_steps_leave_nothing_behind(checkpoint: Checkpoints, policy: str) -> None:
    rig = with_policies(checkpoint("llama"), policy)
    text = begun(rig)
    wanted = decode(rig, text, 20)
    text.used -= 13
    assert torch.equal(decode(rig, text, 13, first=8), wanted[7:])


@pytest.mark.parametrize("policy", KINDS)
def test_a_context_that_moves(checkpoint: Checkpoints, policy: str) -> None:
    """As one that was swapped out, or forked."""
    rig = with_policies(checkpoint("llama"), policy, policy)
    text = begun(rig)
    wanted = decode(rig, text, 12)
    text = begun(rig, told=1)
    decode(rig, text, 6, sampler=1)
    moved = rig.sequence(200)
    rig.copy(text.slots(0, text.used), moved.slots(0, text.used))
    moved.used = text.used
    poison(rig, text.slots(0, text.used))
    assert torch.equal(decode(rig, moved, 6, sampler=1, first=7), wanted[6:])


def test_bounds_follow_keys_that_are_written(checkpoint: Checkpoints) -> None:
    folder = checkpoint("llama")
    rig = with_policies(folder, "quest", "quest")
    text, other = begun(rig), rig.sequence(200)
    decode(rig, text, 5)
    rig.forward(Step(other, TOKENS[100:200]))
    decode(rig, other, 5, sampler=1)
    rig.copy(text.slots(0, PROMPT), other.slots(0, PROMPT))  # other's bounds are stale
    other.used = PROMPT
    put(rig, {1: POLICIES["quest"]()})
    wanted = decode_plainly(folder, POLICIES["quest"](), 5)
    assert_close(decode(rig, other, 5, sampler=1), wanted)


@pytest.mark.parametrize("policy", ["quest", "h2o", "sinks"])
def test_masked_slots_are_not_seen(checkpoint: Checkpoints, policy: str) -> None:
    rig = with_policies(checkpoint("llama"), policy)
    text = begun(rig)
    hidden = [0, 1, 90, 95, 98]
    rig.mask(text, hidden)
    step = Step(text, [7], attends=0, attend_step=1, masked=True)
    (wanted,) = rig.forward(step)
    text.used -= 1
    with torch.inference_mode():
        rig.model.cache.data[:, [text.slots(i, i + 1)[0] for i in hidden], 1] = 1e3  # values
    (found,) = rig.forward(Step(text, [7], attends=0, attend_step=1, masked=True))
    assert torch.equal(found, wanted)


# What is refused


@pytest.mark.parametrize(
    "step",
    [
        {"tokens": [1, 2], "attends": 0, "attend_step": 1},
        {"tokens": [1], "attends": 0, "attend_step": 1, "keep": False},
        {"tokens": [1], "attends": 3},
        {"tokens": [1, 2], "attends": 1, "keep": False},
        {"tokens": [1, 2], "attends": 1, "positions": [101, 100]},
        {"tokens": [1], "attends": 1, "mask": [2, 1, 100]},
    ],
    ids=[
        "several inputs",
        "a key that is not kept",
        "a sampler without a program",
        "a prompt that is not kept",
        "a prompt out of order",
        "a prompt with a mask",
    ],
)
def test_what_no_row_may_be(checkpoint: Checkpoints, step: dict[str, Any]) -> None:
    rig = with_policies(checkpoint("llama"), "sinks", "tova")
    text = begun(rig)
    with pytest.raises(BadBatch, match="attend"):
        rig.forward(Step(text, **step))


def test_a_sampler_that_is_made_anew_has_no_program(checkpoint: Checkpoints) -> None:
    rig = with_policies(checkpoint("llama"), "sinks")
    text = begun(rig)
    with torch.inference_mode():
        made = set_samplers([Sampler(temperature=0.0)], VOCABULARY, slots=[0])
        handlers.samplers.set_sampler(rig.model, made)
    with pytest.raises(BadBatch, match="attend"):
        rig.forward(Step(text, [1], attends=0, attend_step=1))


@pytest.mark.parametrize(
    ("family", "why"), [("deepseekv3", "latents"), ("qwen3_5", "have a state")]
)
def test_models_without_weights_of_heads_say_why(
    checkpoint: Checkpoints, family: str, why: str
) -> None:
    rig = Rig(checkpoint(family))
    assert why in rig.model.description.no_attend
    assert rig.model.key_bounds is None
    assert Rig(checkpoint("llama")).model.description.no_attend == ""
