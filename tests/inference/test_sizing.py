"""Sizes of pools, and the dtype of what they hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, tokens_of

from pie_inference.attention import AttentionOptions
from pie_inference.errors import LoadError
from pie_inference.loading.assembly import load_models
from pie_inference.loading.sizing import gpu_memory, pool_sizes
from pie_inference.models.shape import ModelShape
from pie_py.config.kept_files import cache_folder
from pie_py.config.model import ModelConfig

GB = 10**9
SHAPE = ModelShape((AttentionOptions(),) * 32, 4096, 32, 8, 128, 128_256, 131_072)
SLOT = 32 * 2 * 8 * 128 * 2  # bytes of a token, bfloat16


def test_what_others_use_counts_in_the_utilization() -> None:
    alone = gpu_memory(free=120 * GB, total=140 * GB, utilization=0.9, working=5 * GB, models=1)
    assert alone.usable == 126 * GB - 20 * GB - 5 * GB
    crowded = gpu_memory(free=60 * GB, total=140 * GB, utilization=0.5, working=5 * GB, models=2)
    assert crowded.usable == 0
    assert crowded.free == 55 * GB


@pytest.mark.parametrize(
    ("stored", "size"), [(torch.bfloat16, SLOT), (torch.float8_e4m3fn, SLOT // 2)]
)
def test_a_pool_fills_what_is_usable(stored: torch.dtype, size: int) -> None:
    config = ModelConfig()
    memory = gpu_memory(free=60 * GB, total=80 * GB, utilization=0.9, working=2 * GB, models=1)
    sizes = pool_sizes(config, SHAPE, torch.bfloat16, stored, memory)
    pages = (sizes.kv_pages + config.max_batch_tokens // 16 + 1) * 16 * size
    taken = pages + (sizes.embeds + 1) * 4096 * 2
    assert 0 <= memory.usable - taken < 16 * size
    assert memory.granted == taken


def test_no_room_is_told_with_what_mends_it() -> None:
    memory = gpu_memory(free=GB, total=80 * GB, utilization=0.9, working=2 * GB, models=1)
    with pytest.raises(LoadError, match="gpu_memory_utilization"):
        pool_sizes(ModelConfig(), SHAPE, torch.bfloat16, torch.bfloat16, memory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "llama", deviation=0.05)


def test_a_pool_of_8_bit_floats_is_half_as_large_and_nearly_as_good(folder: Path) -> None:
    wide, narrow = Rig(folder, dtype="bfloat16"), Rig(folder, dtype="bfloat16", kv_dtype="fp8")
    cache = narrow.model.cache
    assert cache.data.nbytes * 2 == wide.model.cache.data.nbytes
    found = []
    for rig in (wide, narrow):
        first, second = rig.sequence(60), rig.sequence(60)
        rig.forward(Step(first, tokens_of(40)), Step(second, tokens_of(21, seed=1)))
        rig.copy(first.slots(0, 16), second.slots(32, 48))
        rig.mask(first, [3, 4])
        steps = [Step(first, tokens_of(1), masked=True), Step(second, tokens_of(7), outputs=7)]
        found.append(torch.cat([*rig.forward(*steps), *rig.forward(Step(second, tokens_of(1)))]))
    error = (found[0] - found[1]).norm() / found[0].norm()
    assert 0 < error < 0.05


def test_what_8_bit_floats_cannot_hold_becomes_the_largest(folder: Path) -> None:
    cache = Rig(folder, kv_dtype="fp8").model.cache
    packed = cache.pack(torch.tensor([[1e6, -1e6, 1.0, 0.0]]))
    assert cache.unpack(packed).tolist() == [[448.0, -448.0, 1.0, 0.0]]


def test_flashinfer_without_a_gpu_is_refused(folder: Path) -> None:
    config = ModelConfig(source=str(folder), device="cpu", attention="flashinfer")
    with pytest.raises(LoadError, match="NVIDIA"):
        load_models([config])


LOAD = """
import sys
import psutil
from pie_inference.loading.assembly import load_models
from pie_py.config.memory import trim
from pie_py.config.model import ModelConfig
served = load_models([ModelConfig(source=sys.argv[1], name="m", kv_pages=64)])
before = psutil.Process().memory_info().rss
trim()
print(before - psutil.Process().memory_info().rss)
"""


def test_what_weights_took_on_their_way_is_given_back(smollm2: Path, tmp_path: Path) -> None:
    """The first time, when they are packed: no file of that is there yet."""
    (tmp_path / "pie_py").mkdir()
    for kept in cache_folder().iterdir():
        if kept.name != "weights":
            (tmp_path / "pie_py" / kept.name).symlink_to(kept)
    told = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, str(smollm2)],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert int(told.splitlines()[-1]) < 30e6
