"""The sample handlers: samplers with programs and without, masks, log-probabilities, tokens that
only the device knows.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.model_rig import Rig, ints, offsets, sample_of
from support.programs_read import bound_by, set_samplers

from inferlet import Sampler
from pie_inference import handlers
from pie_inference.errors import BadBatch
from pie_inference.handlers.embeds import UNKNOWN
from pie_inference.sampling.pool import Choices, SamplerPool
from pie_py.wire.plan import Clear, EmbedSampled, EmbedText, FeedSampler, Samples

GREEDY: dict[str, Any] = {"temperature": 0.0}


@torch.inference_mode()
def logits_of(rig: Rig, embed: int) -> NDArray[np.float64]:
    return rig.model.network.logits(rig.model.embeds.hidden[embed : embed + 1])[0].double().numpy()


@torch.inference_mode()
def put(
    rig: Rig, slot: int, temperature: float = 1.0, seed: int = 0, row: int = -1, **fields: Any
) -> None:
    """Puts a `Sampler` with these fields into a slot."""
    sampler = Sampler(temperature=temperature, **fields)
    seeds = [[seed & 0xFFFFFFFF, seed >> 32]]
    made = set_samplers(
        [sampler], rig.model.description.vocab_size, slots=[slot], seeds=seeds, rows=[row]
    )
    handlers.samplers.set_sampler(rig.model, made)


@torch.inference_mode()
def feed(rig: Rig, slot: int, tokens: list[int], generated: bool) -> None:
    handlers.samplers.feed_sampler(
        rig.model,
        FeedSampler(
            ints([slot]),
            ints([generated]),
            np.zeros(1, np.uint32),
            offsets([len(tokens)]),
            ints(tokens),
        ),
    )


def words(allowed: list[int], vocabulary: int) -> NDArray[np.uint32]:
    out = np.zeros(-(-vocabulary // 32), np.uint32)
    for token in allowed:
        out[token // 32] |= np.uint32(1 << token % 32)
    return out


@torch.inference_mode()
def draw(
    rig: Rig,
    embeds: list[int],
    slots: list[int],
    steps: list[int] | None = None,
    top: list[int] | None = None,
    masks: dict[int, list[int]] | None = None,
) -> tuple[Samples, dict[int, str]]:
    count = len(embeds)
    masks = masks or {}
    vocabulary = rig.model.description.vocab_size
    rows = [words(allowed, vocabulary) for allowed in masks.values()]
    masked = [list(masks).index(i) if i in masks else -1 for i in range(count)]
    table = np.array(rows, np.uint32).reshape(len(rows), -(-vocabulary // 32))
    batch = sample_of(embeds, slots, steps or 0, top or 0, masked, table)
    result = handlers.sample.sample(rig.model, batch).get()
    assert result.values is not None
    assert result.refused is not None
    return result.values, result.refused


def test_greedy_with_log_probabilities_of_the_models_own_distribution(rig: Rig) -> None:
    put(rig, 0, **GREEDY)
    put(rig, 1, 0.3, logit_bias={5: 100.0})
    put(rig, 2, **GREEDY)
    found, refused = draw(rig, [0, 1, 2], [0, 1, 2], top=[0, 3, 5])
    assert not refused
    assert found.top_tokens.shape == (3, 5)
    for i in range(3):
        logits = logits_of(rig, i)
        logprobs = logits - np.log(np.exp(logits).sum())
        token = int(found.tokens[i])
        assert token == (5 if i == 1 else int(logits.argmax()))
        np.testing.assert_allclose(found.logprobs[i], logprobs[token], atol=1e-4)
        best = np.argsort(-logits, kind="stable")[: [0, 3, 5][i]]
        np.testing.assert_array_equal(found.top_tokens[i, : len(best)], best)
        np.testing.assert_allclose(found.top_logprobs[i, : len(best)], logprobs[best], atol=1e-4)


@torch.inference_mode()
def test_greedy_rows_alone_get_what_they_get_beside_others(rig: Rig) -> None:
    """To the bit: two ways lead there, and which one is taken is a matter of who else is in the
    batch.
    """
    for slot in range(4):
        put(rig, slot, **GREEDY)
    put(rig, 4, 1.0)
    alone, _ = draw(rig, [0, 1, 2, 3], [0, 1, 2, 3])
    beside, _ = draw(rig, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert alone.tokens.tolist() == beside.tokens[:4].tolist()
    assert alone.logprobs.tolist() == beside.logprobs[:4].tolist()
    assert rig.model.samplers.tokens[:4].tolist() == alone.tokens.tolist()


def test_a_sampler_set_anew_has_forgotten(rig: Rig) -> None:
    put(rig, 0, 0.0, presence_penalty=100.0, row=0, logit_bias={3: 50.0})
    assert draw(rig, [0], [0])[0].tokens[0] == 3
    put(rig, 0, 0.0, presence_penalty=100.0, row=0)
    best = logits_of(rig, 0).argmax()
    assert draw(rig, [0], [0])[0].tokens[0] == best
    assert draw(rig, [0], [0])[0].tokens[0] != best


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # slot
            st.sampled_from([0.0, 1.0]),  # temperature
            st.sampled_from([0.0, 0.5, 1.0]),  # top-p
            st.sampled_from([0, 1, 5]),  # top-k
            st.sampled_from([-1, 0]),  # row of counts
            st.booleans(),  # bias
        ),
        max_size=8,
    ),
    st.sets(st.integers(0, 3), min_size=1),
)
def test_what_a_step_asks_of_its_samplers_is_what_they_were_set_to(
    made: list[tuple[int, float, float, int, int, bool]], asked: set[int]
) -> None:
    pool = SamplerPool(300, torch.device("cpu"), 4)
    by_program, draws = [False] * 4, [False] * 4
    for slot, temperature, top_p, top_k, row, biased in made:
        sampler = Sampler(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            logit_bias={3: 1.0} if biased else {},
            presence_penalty=0.5 * (row >= 0),
        )
        seeds = np.zeros((1, 2), np.uint32)
        pool.set(ints([slot]), seeds, ints([row]), [bound_by(sampler, 300)])
        by_program[slot] = biased or row >= 0
        draws[slot] = temperature > 0 and top_p > 0 and top_k != 1
    some = sorted(asked)
    compiled = pool.device_programs.compiled
    assert compiled.has[some].tolist() == [not by_program[slot] for slot in some]
    for slot in asked:
        assert by_program[slot] or compiled.drawing[slot] == draws[slot]


def test_masks(rig: Rig) -> None:
    vocabulary = rig.model.description.vocab_size
    put(rig, 0, 2.0, top_k=1)  # the likeliest of those that the mask allows
    for slot in range(1, 4):
        put(rig, slot, 2.0, seed=slot)
    for step in range(20):
        found, refused = draw(
            rig,
            [0, 1, 2, 3],
            [0, 1, 2, 3],
            steps=[step] * 4,
            top=[2] * 4,
            masks={0: [7], 1: list(range(10, 20)), 3: [vocabulary - 1, 0]},
        )
        assert not refused
        best = [np.argsort(-logits_of(rig, i), kind="stable")[:2].tolist() for i in range(4)]
        assert found.top_tokens.tolist() == best  # of the model's own distribution
        assert found.tokens[0] == 7
        assert 10 <= found.tokens[1] < 20
        assert found.tokens[3] in (0, vocabulary - 1)


@settings(max_examples=30)
@given(data=st.data())
def test_where_a_mask_leaves_one_token_nothing_is_drawn(rig: Rig, data: st.DataObject) -> None:
    """Rows beside those get what they get without them."""
    vocabulary = rig.model.description.vocab_size
    tokens = st.sampled_from([0, 31, 32, 63, vocabulary - 1]) | st.integers(0, vocabulary - 1)
    forced = data.draw(st.dictionaries(st.integers(0, 5), tokens))
    for slot in range(6):
        put(rig, slot, 1.0, seed=slot, logit_bias={} if slot < 4 else {5: 1.0})
    masks = {row: [token] for row, token in forced.items()}
    free = [row for row in range(6) if row not in forced]
    drawn: list[int] = []
    choose = SamplerPool.choose

    def seen(pool: SamplerPool, choices: Choices, logits: torch.Tensor) -> torch.Tensor:
        drawn.extend(choices.samplers.tolist())
        return choose(pool, choices, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SamplerPool, "choose", seen)
        found, refused = draw(rig, list(range(6)), list(range(6)), masks=masks)
    assert not refused
    assert sorted(drawn) == [row for row in range(6) if row not in forced or row >= 4]
    assert {row: found.tokens.item(row) for row in forced} == forced
    assert rig.model.samplers.tokens[:6].tolist() == found.tokens.tolist()
    for row, token in forced.items():
        logits = logits_of(rig, row)
        logprob = logits[token] - np.log(np.exp(logits).sum())
        np.testing.assert_allclose(found.logprobs[row], logprob, atol=1e-4)
    if free:
        alone, _ = draw(rig, free, free)
        assert found.tokens[free].tolist() == alone.tokens.tolist()


def test_nothing_left_to_choose_is_told_of_that_row_alone(rig: Rig) -> None:
    vocabulary = rig.model.description.vocab_size
    never = dict.fromkeys(range(vocabulary), -np.inf)
    put(rig, 0, **GREEDY)
    put(rig, 1, 1.0, logit_bias=never)
    put(rig, 2, 1.0, logit_bias={5: -np.inf})
    put(rig, 3, **GREEDY)
    found, refused = draw(rig, [0, 1, 2, 3], [0, 1, 2, 3], masks={2: [5], 3: []})
    assert found.tokens.tolist() == [int(logits_of(rig, 0).argmax()), -1, -1, -1]
    assert list(refused) == [1, 2, 3]
    assert "chose token -1" in refused[1]  # that is none: the sampler's program says so
    assert "chose token -1" in refused[2]
    assert "ruled out" in refused[3]
    with torch.inference_mode():
        missing = handlers.embeds.embed_sampled(
            rig.model, EmbedSampled(ints([0, 1]), ints([0, 0]), ints([20, 21]))
        )
    assert missing.get().refused == {1: UNKNOWN}


def test_the_same_seed_gives_the_same_tokens_in_any_slot_batch_and_order(rig: Rig) -> None:
    put(rig, 0, 1.5, seed=2**63 + 5)
    alone = [int(draw(rig, [4], [0], steps=[i])[0].tokens[0]) for i in range(12)]
    assert len(set(alone)) > 3
    put(rig, 3, 1.5, seed=2**63 + 5)
    put(rig, 1, 0.7, top_k=3, seed=1)
    put(rig, 2, 0.7, top_p=0.5, row=0, frequency_penalty=0.1)
    for i in reversed(range(12)):
        found, _ = draw(rig, [0, 1, 4], [1, 2, 3], steps=[0, 0, i])
        assert found.tokens[2] == alone[i]


def test_chunks_of_rows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for slot in range(8):
        put(rig, slot, 1.0, seed=slot)
    whole, _ = draw(rig, list(range(8)), list(range(8)), top=[2] * 8, masks={5: [9, 8]})
    module = sys.modules["pie_inference.handlers.sample"]
    monkeypatch.setattr(module, "MAX_CELLS", 3 * rig.model.description.vocab_size)
    parts, _ = draw(rig, list(range(8)), list(range(8)), top=[2] * 8, masks={5: [9, 8]})
    np.testing.assert_array_equal(whole.tokens, parts.tokens)
    np.testing.assert_array_equal(whole.top_tokens, parts.top_tokens)
    np.testing.assert_allclose(whole.logprobs, parts.logprobs, atol=1e-5)


def test_embed_sampled_is_embed_text_of_what_was_chosen(rig: Rig) -> None:
    put(rig, 0, 3.0, seed=8)
    put(rig, 1, 3.0, seed=9)
    found, _ = draw(rig, [0, 1], [0, 1])
    with torch.inference_mode():
        handlers.embeds.embed_sampled(
            rig.model, EmbedSampled(ints([1, 0]), ints([11, 12]), ints([30, 31]))
        )
        handlers.embeds.embed_text(
            rig.model, EmbedText(found.tokens[::-1].copy(), ints([11, 12]), ints([40, 41]))
        )
    hidden = rig.model.embeds.hidden
    torch.testing.assert_close(hidden[30:32], hidden[40:42], rtol=0, atol=0)
    assert rig.model.embeds.positions[30:32].tolist() == [11, 12]


def test_a_forgotten_token_is_not_embedded(rig: Rig) -> None:
    put(rig, 0, **GREEDY)
    put(rig, 1, **GREEDY)
    draw(rig, [0, 1], [0, 1])
    none = ints([])
    with torch.inference_mode():
        handlers.pages.clear(rig.model, Clear(none, none, none, ints([1])))
        sampled = EmbedSampled(ints([0, 1]), ints([0, 0]), ints([9, 10]))
        assert handlers.embeds.embed_sampled(rig.model, sampled).get().refused == {1: UNKNOWN}
    assert not rig.model.embeds.hidden[10].any()


def test_logits_that_are_no_numbers_do_no_harm(rig: Rig) -> None:
    with torch.inference_mode():
        rig.model.embeds.hidden[9] = torch.nan
    put(rig, 0, **GREEDY)
    put(rig, 1, 1.0)
    found, refused = draw(rig, [0, 9], [0, 1])
    assert found.tokens[0] == logits_of(rig, 0).argmax()
    assert list(refused) == [1]
    put(rig, 1, **GREEDY)
    found, refused = draw(rig, [0, 9], [0, 1])
    assert found.tokens[0] == logits_of(rig, 0).argmax()
    assert list(refused) == [1]


def test_what_the_worker_refuses(rig: Rig) -> None:
    put(rig, 0)
    size = rig.model.samplers.size
    with pytest.raises(BadBatch, match="sampler"):
        draw(rig, [0], [size])
    with pytest.raises(BadBatch, match="twice"):
        draw(rig, [0, 1], [0, 0])
    with pytest.raises(BadBatch, match="embed"):
        draw(rig, [rig.model.embeds.size], [0])
    with pytest.raises(BadBatch, match="top"):
        draw(rig, [0], [0], top=[100_000])
    with pytest.raises(BadBatch, match="sampler"):
        put(rig, size)
    with pytest.raises(BadBatch, match="row"):
        put(rig, 0, row=rig.model.samplers.count_rows)
    with pytest.raises(BadBatch, match="token"):
        feed(rig, 0, [100_000], True)
    with pytest.raises(BadBatch, match="position"):
        handlers.embeds.embed_sampled(rig.model, EmbedSampled(ints([0]), ints([-1]), ints([0])))
