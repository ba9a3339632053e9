"""Each forward gets the threads that were found worth it; results do not depend on them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, expected_logits, forward_of, tokens_of

from pie_inference.calibration import costs, threads
from pie_inference.calibration.threads import MOST_ALONE, SharedCores, Threads
from pie_inference.serving import engine as engine_module
from pie_inference.serving.engine import Engine
from pie_inference.serving.worker import WorkerConfig
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import EmbedText, Plan


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def used(found: Threads, inputs: int, sequences: int | None = None) -> int:
    found.use(inputs, inputs if sequences is None else sequences)
    return torch.get_num_threads()


def found_by(times: Callable[[int, int], float], most: int, sizes: Sequence[int]) -> Threads:
    """Threads that were told what forwards of these sizes take, by inputs and threads."""
    torch.set_num_threads(most)
    found = Threads(most, SharedCores(lambda _: 0.0))
    for inputs in sizes:
        found.took(times(inputs, used(found, inputs)))
    return found


@pytest.fixture
def found() -> Threads:
    """Two threads for steps of one input, one for others of up to 32."""
    return found_by(lambda inputs, count: count ** (1 if inputs > 1 else -1), 2, [1, 8, 32] * 40)


def test_by_the_number_of_inputs(found: Threads) -> None:
    assert [used(found, n) for n in (1, 2, 8, 9, 32, 33, 1000)] == [2, 1, 1, 1, 1, 2, 2]


def test_prompts_get_them_all(found: Threads) -> None:
    assert [used(found, n, s) for n, s in ((8, 2), (9, 2), (32, 8), (32, 7))] == [1, 2, 1, 2]


def test_what_was_found_beside_others_does_not_stay() -> None:
    now = 0.0
    found = Threads(2, SharedCores(lambda _: 0.0), lambda: now)
    for faster in (1, 2, 1):
        for _ in range(40):
            found.took(1.0 if used(found, 1) == faster else 2.0)
        assert [used(found, 1) for _ in range(10)] == [faster] * 10
        now += threads.AGAIN_SECONDS


@pytest.mark.parametrize(("gain", "wanted"), [(1.9, 2), (1.01, 1)])
def test_all_cores_where_that_is_worth_it(gain: float, wanted: int) -> None:
    found = found_by(lambda inputs, threads: 0.01 / (gain if threads == 2 else 1), 2, [8] * 40)
    assert used(found, 8) == used(found, 2) == used(found, 8) == wanted
    assert used(found, 1000, 1) == 2


@pytest.mark.parametrize("best", [1, 2, 4, 6, 7])
def test_fewer_are_tried_as_long_as_that_is_faster(best: int) -> None:
    """No step is computed with one thread where half of the threads are too few."""
    tried = set()

    def times(inputs: int, threads: int) -> float:
        tried.add(threads)
        return 1.0 + abs(threads - best) / 10

    assert used(found_by(times, 8, [1] * 200), 1) == (7 if best == 6 else best)
    assert tried == {8, *(n for n in (7, 4, 2, 1) if n >= (best + 1) // 2 or n == 4)}


def test_what_is_found_counts_for_steps_of_its_size_alone() -> None:
    found = found_by(lambda inputs, threads: 1.0 + threads, 2, [8] * 40)
    assert [used(found, n) for n in (2, 8, 9, 33)] == [1, 1, 2, 2]


def test_steps_of_changing_sizes_are_not_compared() -> None:
    found = found_by(lambda inputs, threads: inputs, 2, list(range(2, 9)) * 20)
    assert used(found, 8) == 2


def test_the_first_steps_and_disturbed_ones_do_not_count() -> None:
    """Of a forward that had to go on with one thread it is not known what two take."""
    torch.set_num_threads(2)
    waited, now = 0.0, 0.0
    cores = SharedCores(lambda _: waited, lambda: now)
    found = Threads(2, cores)
    for _ in range(100):
        found.use(1, 1)
        waited, now = waited + 1.0, now + 1.0
        found.between_layers()
        assert torch.get_num_threads() == 1
        found.took(0.001 if torch.get_num_threads() == 1 else 1.0)
    waited, now = 0.0, now + MOST_ALONE
    assert {used(found, 1) for _ in range(10)} == {2}


def test_what_was_found_stays_where_steps_change_too_often_to_be_compared() -> None:
    now = 0.0
    found = Threads(2, SharedCores(lambda _: 0.0), lambda: now)
    for _ in range(40):
        found.took(float(used(found, 8)))
    now += threads.AGAIN_SECONDS
    chosen = []
    for inputs in (7, 8) * 20:
        chosen.append(used(found, inputs))
        found.took(1.0)
    assert chosen[1:] == [1] * 39


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pie_py" / "calibration"


def served(folder: Path, **settings: Any) -> Engine:
    config = ModelConfig(source=str(folder), embeds=256, kv_pages=16, **settings)
    return Engine([config], fixed_threads=False)


def run_forward(engine: Engine, count: int) -> None:
    """Runs one of a sequence with so many inputs."""
    ids = np.arange(count, dtype=np.int32)
    forward = forward_of([count], np.full(count, -1), [[]])
    embed = EmbedText(np.full(count, 5, np.int32), ids, ids)
    result = engine.run(Plan(1, engine.descriptions[0].name, [embed, forward]))
    assert [part.error for part in result.results] == [None, None]


def test_plans_run_with_them_and_the_next_start_knows_the_costs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "STEP_SECONDS", 1e9)
    monkeypatch.setattr(costs, "LONG_SECONDS", 1e9)
    monkeypatch.setattr(engine_module, "SharedCores", lambda: SharedCores(lambda _: 0.0))
    folder = make_llama(tmp_path / "llama")
    engine = served(folder)
    measured = engine.descriptions[0].kv_costs
    assert measured is not None
    assert measured["prefill"]["tokens"] == [16, 64, 256]
    for _ in range(40):
        run_forward(engine, 4)
    for count, wanted in ((4, 1), (200, 2)):
        run_forward(engine, count)
        assert torch.get_num_threads() == wanted
    monkeypatch.setattr(engine_module, "measure", lambda *_: pytest.fail("measured again"))
    again = served(folder)
    assert again.descriptions[0].kv_costs == measured


@pytest.mark.parametrize("damage", ["cut off", "other content", "empty", "old", "a folder"])
def test_a_damaged_or_old_file_counts_as_none(tmp_path: Path, cache: Path, damage: str) -> None:
    folder = make_llama(tmp_path / "llama")
    served(folder)
    (file,) = cache.glob("*.json")
    assert file.stat().st_mode & 0o077 == 0
    content = file.read_bytes()
    match damage:
        case "cut off":
            file.write_bytes(content[:-9])
        case "other content":
            file.write_bytes(content.replace(b'"threads"', b'"Threads"'))
        case "empty":
            file.write_bytes(b"")
        case "old":
            os.utime(file, (0, 0))
        case "a folder":
            file.unlink()
            file.mkdir()
    assert served(folder).descriptions[0].kv_costs is not None
    if damage != "a folder":  # made anew
        digest, _, found = file.read_bytes().partition(b"\n")
        assert digest.decode() == hashlib.sha256(found).hexdigest()


def test_models_of_other_shapes_are_measured_by_themselves(tmp_path: Path, cache: Path) -> None:
    served(make_llama(tmp_path / "llama"))
    folder = make_llama(tmp_path / "same")
    (folder / ".#config.json").symlink_to("me@here.1")  # as editors leave them: nothing is there
    served(folder)
    assert len(list(cache.glob("*.json"))) == 1
    served(make_llama(tmp_path / "other", layers=3))
    assert len(list(cache.glob("*.json"))) == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_weights_in_few_bits_are_measured_by_themselves(tmp_path: Path, cache: Path) -> None:
    folder = make_llama(tmp_path / "llama")
    for count, settings in enumerate(({}, {"quantize": "int8"}, {"quantize": "int4"}), 1):
        served(folder, **settings)
        assert len(list(cache.glob("*.json"))) == count


def test_who_is_told_a_number_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [{"source": "x"}]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert not WorkerConfig.model_validate({"models": models}).fixed_threads
    assert WorkerConfig.model_validate({"models": models, "threads": 2}).fixed_threads
    assert WorkerConfig.model_validate({"models": models, "tensor_parallel_size": 2}).fixed_threads
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert WorkerConfig.model_validate({"models": models}).fixed_threads


@pytest.mark.parametrize("count", [1, 2])
def test_both_ways_to_decode_in_bfloat16(tmp_path: Path, count: int) -> None:
    """Heads as queries of the one they share, and each by itself; few keys and many."""
    folder = make_llama(tmp_path / "llama", heads=4, kv_heads=2, head_dim=64)
    rig = Rig(folder, pages=128, dtype="bfloat16")
    lengths = [30, 50, 400, 420]
    texts = [tokens_of(n, seed=n) for n in lengths]
    sequences = [rig.sequence(n) for n in lengths]
    rig.forward(*(Step(s, text[:-1]) for s, text in zip(sequences, texts, strict=True)))
    torch.set_num_threads(count)
    found = rig.forward(*(Step(s, text[-1:]) for s, text in zip(sequences, texts, strict=True)))
    for text, logits in zip(texts, found, strict=True):
        wanted = expected_logits(folder, text)[-1]
        assert torch.nn.functional.cosine_similarity(logits[0], wanted, dim=0) > 0.995
