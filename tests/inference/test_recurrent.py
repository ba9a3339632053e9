"""Layers with a state follow their pages: what is done to those is done to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.families import make_family
from support.model_rig import (
    Rig,
    Step,
    Stream,
    assert_close,
    causal,
    expected_logits,
    ints,
    runs_of,
    tokens_of,
)

from pie_inference.attention import recurrent
from pie_inference.errors import LoadError
from pie_inference.loading import sizing
from pie_inference.models import delta_net
from pie_inference.models.delta_net import gated_delta_rule

SIZE = 8  # of a page
RECURRENT = 2  # layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family(tmp_path_factory.mktemp("model") / "hybrid", "qwen3next")


def check(rig: Rig, folder: Path, sequence: Stream, text: list[int]) -> None:
    """Runs what a sequence lacks of a text, and compares with transformers on the whole."""
    done = sequence.used
    (found,) = rig.forward(Step(sequence, text[done:], outputs=len(text) - done))
    assert_close(found, expected_logits(folder, text)[done:])


@pytest.mark.parametrize("tokens", [1, 5, 64, 150])
def test_the_rule_token_by_token(tokens: int) -> None:
    """Chunks give what the rule's own words give, one token after the other."""
    generator = torch.Generator().manual_seed(tokens)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    q, k, v = (torch.nn.functional.normalize(numbers(2, 3, tokens, n), dim=-1) for n in (8, 8, 6))
    decays, strengths = -numbers(2, 3, tokens).exp(), numbers(2, 3, tokens).sigmoid()
    state = begin = numbers(2, 3, 8, 6)
    wanted = []
    for t in range(tokens):
        state = decays[:, :, t, None, None].exp() * state
        key = k[:, :, t, :, None]
        correction = strengths[:, :, t, None] * (v[:, :, t] - (state.mT @ key).squeeze(-1))
        state = state + key @ correction.unsqueeze(-2)
        wanted.append((state.mT @ q[:, :, t, :, None]).squeeze(-1))
    read, after = gated_delta_rule(q, k, v, decays, strengths, begin)
    torch.testing.assert_close(read, torch.stack(wanted, 2), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after, state, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("back", [1, 5, 13, 30])
def test_going_back_within_a_page_or_beyond(folder: Path, back: int) -> None:
    """As when a run is undone, or a context is cut."""
    rig = Rig(folder, page_size=SIZE)
    text = tokens_of(30)
    sequence = rig.sequence(60)
    rig.forward(Step(sequence, text[:21], outputs=0))
    for token in text[21:]:
        rig.forward(Step(sequence, [token]))
    sequence.used -= back
    text = text[: 30 - back] + tokens_of(12, seed=5)
    check(rig, folder, sequence, text[: 31 - back])
    check(rig, folder, sequence, text)


def test_one_page_table_in_two_sequences(folder: Path) -> None:
    """Several go on from the same state in one batch, and none spoils the others'."""
    rig = Rig(folder, page_size=SIZE)
    text = tokens_of(19)
    first = rig.sequence(40)
    check(rig, folder, first, text)
    again = Stream(rig, first.pages)
    again.used = 19
    steps = [Step(again, [token], keep=False) for token in (5, 6, 7)]
    for token, found in zip((5, 6, 7), rig.forward(*steps), strict=True):
        assert_close(found, expected_logits(folder, [*text, token])[-1:])
    check(rig, folder, first, [*text, 9, 8])


def test_shared_prefixes_and_few_states(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are a cache: with two rows for eight sequences all is the same."""
    monkeypatch.setattr(sizing, "MAX_STATES", 2)
    rig = Rig(folder, page_size=SIZE, pages=100)
    prefix = tokens_of(24)
    first = rig.sequence(24)
    check(rig, folder, first, prefix)
    texts = [[*prefix, *tokens_of(9, seed=i)] for i in range(8)]
    sequences = [Stream(rig, first.pages + rig.sequence(16).pages) for _ in texts]
    for sequence in sequences:
        sequence.used = 24
    for start, end in ((24, 29), (29, 30), (30, 31), (31, 33)):
        steps = [Step(s, t[start:end]) for s, t in zip(sequences, texts, strict=True)]
        for text, found in zip(texts, rig.forward(*steps), strict=True):
            assert_close(found, expected_logits(folder, text[:end])[-1:])


@torch.inference_mode()
def test_swapped_pages(folder: Path) -> None:
    rig = Rig(folder, page_size=SIZE, host_pages=8)
    text = tokens_of(29)
    sequence = rig.sequence(40)
    check(rig, folder, sequence, text[:27])
    hosts = np.arange(4, dtype=np.int32)
    rig.model.host.swap_out(ints(sequence.pages[:4]), hosts)
    moved = rig.sequence(40)
    rig.model.host.swap_in(hosts, ints(moved.pages[:4]))
    moved.used = 27
    check(rig, folder, moved, text)


def test_masks(folder: Path) -> None:
    """A hidden token is not in the state: by a mask of the forward, of the slot, or left out."""
    rig = Rig(folder, page_size=SIZE)
    text, more = tokens_of(24), tokens_of(6, seed=3)
    sequences = [rig.sequence(40) for _ in range(4)]
    for sequence in sequences:
        check(rig, folder, sequence, text)
    told, masked, left_out, plain = sequences
    visible = causal(30)
    (found,) = rig.forward(Step(plain, more, outputs=6, mask=runs_of(visible[24:])))
    assert_close(found, expected_logits(folder, [*text, *more])[24:])

    visible[24:, 8:16] = False
    (by_rows,) = rig.forward(Step(told, more, outputs=6, mask=runs_of(visible[24:])))
    rig.mask(masked, range(8, 16))
    (by_slots,) = rig.forward(Step(masked, more, outputs=6, masked=True))
    del left_out.pages[1]
    left_out.used = 16
    (by_pages,) = rig.forward(Step(left_out, more, outputs=6, positions=range(24, 30)))
    assert_close(by_rows, by_slots)
    assert_close(by_pages, by_slots)
    assert (by_slots - found).abs().max() > 0.1
    rig.mask(masked, [])
    sequence = Stream(rig, masked.pages)
    sequence.used = 24
    (shown,) = rig.forward(Step(sequence, more, outputs=6, masked=True))
    assert_close(shown, found)


@torch.inference_mode()
def test_what_a_state_is_of_is_not_read_again(folder: Path) -> None:
    """Decoding goes on from a state; going back, from that of the last full page."""
    rig = Rig(folder, page_size=SIZE)
    text = tokens_of(40)
    sequence = rig.sequence(40)
    check(rig, folder, sequence, text[:27])
    spoiled = sequence.slots(0, 24 - 3)  # a convolution looks back at three tokens
    rig.model.cache.recurrent[:, torch.tensor(spoiled)] = float("nan")
    for end in range(28, 33):
        check(rig, folder, sequence, text[:end])
    sequence.used = 26
    check(rig, folder, sequence, [*text[:26], 5, 6])


class Counted:
    """Counts the tokens over which the rule of recurrent layers is run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tokens = 0
        rule = gated_delta_rule

        def counted(queries: torch.Tensor, keys: torch.Tensor, *others: torch.Tensor) -> Any:
            self._tokens += keys.shape[0] * keys.shape[2]
            return rule(queries, keys, *others)

        monkeypatch.setattr(delta_net, "gated_delta_rule", counted)

    def taken(self) -> int:
        """Tokens since the last call."""
        tokens, self._tokens = self._tokens, 0
        return tokens // RECURRENT


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(recurrent, "BORDER", 16)
    return Counted(monkeypatch)


def page_of(rig: Rig, shared: Stream, pages: int) -> Stream:
    """Another sequence that begins with full pages of one."""
    sequence = Stream(rig, shared.pages[:pages] + rig.sequence(40).pages)
    sequence.used = pages * SIZE
    return sequence


def test_going_back_reads_no_more_than_lies_behind_a_border(folder: Path, counted: Counted) -> None:
    """States are kept after every 16th token, and after the last full page of a forward."""
    rig = Rig(folder, page_size=SIZE)
    text = tokens_of(60)
    sequence = rig.sequence(80)
    check(rig, folder, sequence, text[:60])
    assert counted.taken() == 60, "each token once, whatever is kept"
    # Where a context is cut, and how many tokens there are from the border before on, with a new
    # one: the last page begins with 56.
    for back, read in ((59, 4), (57, 2), (56, 1), (55, 8), (48, 1), (31, 16), (15, 16), (3, 4)):
        sequence.used = back
        check(rig, folder, sequence, [*text[:back], 5])
        assert counted.taken() == read, back
        sequence.used = back
        check(rig, folder, sequence, text[: back + 1])
        counted.taken()


def test_forks_and_prefixes_begin_at_a_border(folder: Path, counted: Counted) -> None:
    rig = Rig(folder, page_size=SIZE)
    text = tokens_of(60)
    first = rig.sequence(80)
    check(rig, folder, first, text)
    counted.taken()
    for number, read in enumerate((8 + 3, 3, 3)):  # 40 tokens: the first one leaves a state there
        check(rig, folder, page_of(rig, first, 5), [*text[:40], *tokens_of(3, seed=number)])
        assert counted.taken() == read
    check(rig, folder, page_of(rig, first, 6), [*text[:48], 7])
    assert counted.taken() == 1


def test_a_run_that_is_undone_goes_on_from_the_border_before(
    folder: Path, counted: Counted
) -> None:
    rig = Rig(folder, page_size=SIZE)
    text = tokens_of(60)
    sequence = rig.sequence(80)
    check(rig, folder, sequence, text[:20])
    for token in text[20:60]:
        rig.forward(Step(sequence, [token]))
    assert counted.taken() == 60
    sequence.used = 30
    check(rig, folder, sequence, [*text[:30], 6])
    assert counted.taken() == 31 - 24, "each full page was a border"


@pytest.mark.parametrize("part", [4, 8, 200])
def test_borders_do_not_take_the_rows_of_other_sequences_ends(
    folder: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(sizing, "MAX_STATES", 8)
    rig = Rig(folder, page_size=SIZE, pages=100)
    waiting = [rig.sequence(16) for _ in range(3)]
    for number, sequence in enumerate(waiting):
        check(rig, folder, sequence, tokens_of(5, seed=number))
    long, text = rig.sequence(240), tokens_of(200)
    for start in range(0, 200, part):
        rig.forward(Step(long, text[start : start + part]))
    counted.taken()
    for number, sequence in enumerate(waiting):
        check(rig, folder, sequence, [*tokens_of(5, seed=number), 9])
        assert counted.taken() == 1
    check(rig, folder, long, [*text, 9])
    assert counted.taken() == 1


def test_slots_of_eight_bits_are_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match="kv_dtype: slots of layers with a state"):
        Rig(folder, kv_dtype="fp8")
