"""Pages that go to the host pool and come back, and the costs that a worker measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.families import make_family
from support.model_rig import Rig, Step, Stream, assert_close, expected_logits, ints

from pie_inference import handlers
from pie_inference.calibration import costs
from pie_inference.calibration.costs import fit, measure
from pie_inference.errors import BadBatch, LoadError
from pie_py.wire.plan import SwapIn, SwapOut

TOKENS = [int(t) for t in np.random.default_rng(3).integers(4, 300, 90)]


@torch.inference_mode()
def move(rig: Rig, stream: Stream, hosts: list[int], back_to: list[int]) -> None:
    """Swaps a stream's pages out, spoils the old ones, and swaps them in elsewhere."""
    handlers.pages.swap_out(rig.model, SwapOut(ints(stream.pages), ints(hosts)))
    cache = rig.model.cache
    for page in stream.pages:
        slots = slice(page * cache.page_size, (page + 1) * cache.page_size)
        cache.data[:, slots] = float("nan")
        cache.masked[slots] = True
        cache.positions[slots] = 9999
        cache.stamp(np.arange(slots.start, slots.stop))
    handlers.pages.swap_in(rig.model, SwapIn(ints(hosts), ints(back_to)))
    stream.pages = back_to


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # gemma's windows look at positions
def test_a_text_goes_on_as_if_it_had_stayed(tmp_path: Path, family: str) -> None:
    folder = make_family(tmp_path / family, family)
    rig = Rig(folder, pages=24, host_pages=20)
    stream = rig.sequence(90)
    other = rig.sequence(60)
    rig.forward(Step(stream, TOKENS[:70]), Step(other, TOKENS[:30]))
    for i in (70, 71):
        rig.forward(Step(stream, [TOKENS[i]]), Step(other, [TOKENS[i]]))  # decoding keeps copies
    free = [int(page) for page in rig._free][: len(stream.pages)]
    move(rig, stream, hosts=[3, 9, 10, 11, 0, 1][: len(stream.pages)], back_to=free[::-1])
    rest = [rig.forward(Step(stream, [t]), Step(other, [t]))[0] for t in TOKENS[72:]]
    assert_close(torch.cat(rest), expected_logits(folder, TOKENS)[72:])


@torch.inference_mode()
def test_texts_that_change_places_leave_their_copies_behind(folder: Path) -> None:
    """What decoding keeps of a page is of the text that was there."""
    rig = Rig(folder, pages=8, host_pages=8)
    texts = TOKENS[:40], TOKENS[40:80]
    streams = [rig.sequence(40) for _ in texts]
    for start, end in ((0, 37), (37, 38), (38, 39)):
        rig.forward(*(Step(s, text[start:end]) for s, text in zip(streams, texts, strict=True)))
    pages = [stream.pages for stream in streams]
    everywhere, hosts = ints(pages[0] + pages[1]), ints(range(2 * len(pages[0])))
    handlers.pages.swap_out(rig.model, SwapOut(everywhere, hosts))
    handlers.pages.swap_in(rig.model, SwapIn(hosts, ints(pages[1] + pages[0])))
    streams[0].pages, streams[1].pages = pages[1], pages[0]
    last = rig.forward(*(Step(s, text[39:]) for s, text in zip(streams, texts, strict=True)))
    for found, text in zip(last, texts, strict=True):
        assert_close(found, expected_logits(folder, text)[39:])


def test_masked_slots_stay_masked(folder: Path) -> None:
    rig = Rig(folder, pages=8, host_pages=2)
    stream = rig.sequence(30)
    rig.forward(Step(stream, TOKENS[:20]))
    rig.mask(stream, [2, 5, 17])
    before = rig.forward(Step(stream, TOKENS[20:24], keep=False, masked=True, outputs=4))[0]
    move(rig, stream, hosts=[1, 0], back_to=[int(page) for page in rig._free[:2]])
    after = rig.forward(Step(stream, TOKENS[20:24], keep=False, masked=True, outputs=4))[0]
    torch.testing.assert_close(before, after, rtol=0, atol=0)


@torch.inference_mode()
def test_large_transfers_go_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(folder, pages=16, host_pages=16)
    monkeypatch.setattr(rig.model.host, "_step", 3)
    content = torch.randn_like(rig.model.cache.data)
    rig.model.cache.data.copy_(content)
    pages, hosts = np.random.default_rng(0).permuted([range(16)] * 2, axis=1)
    handlers.pages.swap_out(rig.model, SwapOut(ints(pages), ints(hosts)))
    rig.model.cache.data[:, : rig.model.cache.slots].zero_()
    handlers.pages.swap_in(rig.model, SwapIn(ints(hosts[::-1]), ints(pages[::-1])))
    assert torch.equal(rig.model.cache.data, content)


@torch.inference_mode()
def test_to_move_a_few_pages_takes_memory_for_a_few(folder: Path) -> None:
    model = Rig(folder, pages=2048, host_pages=8).model
    with torch.profiler.profile(profile_memory=True) as profile:
        handlers.pages.swap_out(model, SwapOut(ints([5, 9]), ints([1, 2])))
        handlers.pages.swap_in(model, SwapIn(ints([1, 2]), ints([5, 9])))
    taken = [event.self_cpu_memory_usage for event in profile.key_averages()]
    assert 0 < max(taken) < 32 * model.host.page_bytes


def test_wrong_batches_are_refused(folder: Path) -> None:
    model = Rig(folder, pages=4, host_pages=3).model
    for batch in (
        SwapOut(ints([0]), ints([3])),
        SwapOut(ints([4]), ints([0])),
        SwapOut(ints([-1]), ints([0])),
        SwapOut(ints([0, 1]), ints([2])),
        SwapOut(ints([0, 1]), ints([2, 2])),
    ):
        with pytest.raises(BadBatch, match="swap_out"):
            handlers.pages.swap_out(model, batch)
    with pytest.raises(BadBatch, match="swap_in"):
        handlers.pages.swap_in(model, SwapIn(ints([0, 1]), ints([2, 2])))


def test_the_pool_is_as_large_as_it_is_told(folder: Path) -> None:
    assert Rig(folder, pages=4).model.host.pages == 4  # not more than the KV pool by default
    assert Rig(folder, pages=4, host_pages=9).model.description.host_pages == 9
    assert Rig(folder, pages=4, host_pages=0).model.description.host_pages == 0
    page = Rig(folder, pages=4).model.host.page_bytes
    assert page == 2 * 2 * 2 * 16 * 4 * 16  # layers, key and value, kv heads, dim, bytes, slots
    assert Rig(folder, pages=4, host_memory=7 * page + 1).model.description.host_pages == 7
    with pytest.raises(LoadError, match=r"host memory for .* set host_memory or host_pages"):
        Rig(folder, pages=4, host_pages=10**9)


@pytest.mark.parametrize("host_pages", [0, 1, 30])
def test_costs_are_measured(folder: Path, host_pages: int) -> None:
    model = Rig(folder, pages=20, host_pages=host_pages, max_batch_tokens=100).model
    found = measure(model)
    assert found["page_bytes"] == model.host.page_bytes
    for way in ("swap_out", "swap_in"):
        assert (found[way] is None) == (host_pages == 0)
        if host_pages:
            assert found[way]["bytes_per_second"] > 0
            assert found[way]["seconds"] >= 0
    prefill, decode = found["prefill"], found["decode"]
    assert prefill["tokens"] == [16, 64][: len(prefill["tokens"])]
    assert decode["sequences"] == [1, 8, 32][: len(decode["sequences"])]
    for series in (prefill["seconds"], decode["seconds"]):
        assert series
        assert all(s > 0 for s in series)


@pytest.mark.parametrize(("times", "pages"), [((2.0, 3.0), 1), ((3.0, 2.0), 5), ((2.0, 2.0), 5)])
def test_rates_of_noisy_times(
    folder: Path, monkeypatch: pytest.MonkeyPatch, times: tuple[float, float], pages: int
) -> None:
    model = Rig(folder, pages=4).model
    told = iter(times)
    monkeypatch.setattr(costs, "_fastest", lambda model, run: next(told))
    found = costs._rate(model, pages, lambda n: None)
    assert found == {"seconds": 0.0, "bytes_per_second": pages * model.host.page_bytes / times[1]}


def test_little_time_is_little_measuring(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lengths of prompts are measured all the same, unless the first takes long."""
    monkeypatch.setattr(costs, "SECONDS", 0.0)
    for long, tokens in ((0.0, [16]), (1e9, [16, 64, 256])):
        monkeypatch.setattr(costs, "LONG_SECONDS", long)
        found = measure(Rig(folder, pages=4).model)
        assert found["prefill"]["tokens"] == tokens
        assert found["decode"]["sequences"] == [1]


@given(
    st.floats(0, 1e-2),
    st.floats(1e-6, 1e-2),
    st.floats(0, 1e-5),
    st.sampled_from([[16], [16, 64], [16, 64, 256], [16, 64, 256, 1024, 4096]]),
    st.integers(0, 2**32),
)
def test_the_fit_comes_near_and_is_never_negative(
    c: float, a: float, b: float, tokens: list[int], seed: int
) -> None:
    n = np.array(tokens, np.float64)
    exact = c + a * n + b * n * n
    noise = np.random.default_rng(seed).uniform(0.95, 1.05, n.size)
    for seconds, tolerance in ((exact, 1e-4), (exact * noise, None)):
        found = np.array(fit(tokens, seconds.tolist()))
        assert (found >= 0).all()
        assert found[1] > 0 or found[2] > 0
        if tolerance and len(tokens) >= 3:
            told = found[0] + found[1] * n + found[2] * n * n
            np.testing.assert_allclose(told, seconds, rtol=0.05)
