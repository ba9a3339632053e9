"""Steps in one call compute what the layers do one by one."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference.test_few_bits import assert_multiplies, test_the_largest_sums, weight
from inference.test_few_bits import other_cache as other_cache  # fixtures
from inference.test_few_bits import own_cache as own_cache
from inference.test_quantized import plain_copy
from safetensors.torch import load_file
from support.checkpoints import make_adapter
from support.compilers import KEEPING_CC, on_the_stack, product_loops
from support.families import make_family
from support.model_rig import Rig, Step, Stream, causal, multiplies_integers, runs_of, tokens_of

from pie_inference.attention.paging import MOST_INPUTS
from pie_inference.layers import native, variants
from pie_inference.layers.grouped import multiplies_bfloat16
from pie_inference.layers.variants import (
    FLAGS,
    SOURCE,
    VARIANTS,
    best_variant,
    compile_library,
    flags_for,
    variant_flags,
    variants_of,
)
from pie_inference.models.fused_steps import FusedSteps

MODELS: dict[str, tuple[str, tuple[int, int, int]]] = {  # query heads, key heads, head_dim
    "groups of 3": ("llama", (9, 3, 64)),
    "alone": ("llama-biases", (4, 4, 80)),
    "one for 7": ("qwen3", (7, 1, 96)),
    "biases": ("qwen2", (6, 3, 128)),
    "window": ("mistral", (8, 2, 16)),
    "neighbours turn": ("glm", (4, 2, 32)),
    "no positions": ("smollm3", (6, 2, 32)),
}
LENGTHS = (1, 16, 129, 300, 5)  # of which two have several chunks
COUNTS = (1, MOST_INPUTS, 1, 1, 2)  # inputs
PROMPTS = (1, MOST_INPUTS + 1, 49, 140, 2)  # the same, of which some attend in tiles


def make(name: str, folder: Path) -> Path:
    family, (heads, kv_heads, head_dim) = MODELS[name]
    return make_family(
        folder / "model",
        family,
        hidden_size=32 * heads,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
    )


@pytest.fixture(params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make(request.param, tmp_path)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def served(folder: Path, dtype: str = "float32", **more: Any) -> Rig:
    rig = Rig(folder, pages=128, quantize="int8", dtype=dtype, **more)
    assert rig.model.fused_steps is not None
    return rig


def by_layers(rig: Rig) -> Rig:
    """The same, whose steps are not fused."""
    rig.model = replace(rig.model, fused_steps=None)
    return rig


def started(rig: Rig) -> list[Stream]:
    """Sequences of a prompt each, one of them with masked tokens."""
    found = [rig.sequence(length + 200) for length in LENGTHS]
    for seed, (sequence, length) in enumerate(zip(found, LENGTHS, strict=True)):
        rig.forward(Step(sequence, tokens_of(length, seed)))
    rig.mask(found[2], [0, 3, 100, 128])
    return found


def step(
    sequences: list[Stream], seed: int, counts: tuple[int, ...] = COUNTS, most: int = 1000
) -> list[Step]:
    """A new token of each or some, one of which is not kept; at most so many outputs of each."""
    return [
        Step(s, tokens_of(n, seed + n), outputs=min(n, most), masked=i == 2, keep=i != 4)
        for i, (s, n) in enumerate(zip(sequences, counts, strict=True))
    ]


Change = Callable[[list[Step]], list[Step]]


def decoded(rig: Rig, change: Change = lambda steps: steps) -> torch.Tensor:
    """Logits of some steps of sequences together, with parts of prompts, also without an output."""
    sequences = started(rig)
    mixed = (1, 2, 60, 1, 1)
    steps = ((0, COUNTS), (1, COUNTS), (2, PROMPTS), (3, mixed, 3), (4, mixed, 0), (5, COUNTS))
    found = [torch.cat(rig.forward(*change(step(sequences, *each)))) for each in steps]
    return torch.cat([each for each in found if len(each)])


def assert_as_by_layers(
    folder: Path,
    change: Change = lambda steps: steps,
    read: Callable[[Rig, Change], torch.Tensor] = decoded,
    integers: bool = False,
    **config: Any,
) -> None:
    """In float32 but for the order of sums, or a fiftieth of what bfloat16 loses where kernels
    multiply `integers`; in bfloat16 no further from that than by layers.
    """
    exact = read(by_layers(served(folder, **config)), change)
    found = read(served(folder, **config), change)
    error = (read(by_layers(served(folder, "bfloat16", **config)), change) - exact).norm()
    if integers or multiplies_integers():
        assert (found - exact).norm() < error / 50
    else:
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=5e-4)
    assert (read(served(folder, "bfloat16", **config), change) - exact).norm() < 1.25 * error


def test_steps_are_those_of_the_layers(folder: Path) -> None:
    assert_as_by_layers(folder)


def test_long_prompts_run_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts in which sequences begin and end, have outputs and have none."""
    folder = make("window", tmp_path)
    adapter = make_adapter(folder, tmp_path / "adapter")
    monkeypatch.setattr("pie_inference.layers.step.MOST_ROWS", 50)
    adapters = {"some": str(adapter), "again": str(adapter)}
    assert_as_by_layers(folder, with_adapters, adapters=adapters)


def forks(rig: Rig) -> list[Stream]:
    """Sequences of which many begin alike: some with 300 tokens, some with 130 of these, some with
    others; and one that begins as no other does.
    """
    trunks = [rig.sequence(320), rig.sequence(200)]
    for seed, trunk in enumerate(trunks):
        rig.forward(Step(trunk, tokens_of(len(trunk.pages) * rig.page_size - 20, seed)))
    alone = rig.sequence(280)
    rig.forward(Step(alone, tokens_of(260, 7)))
    found = [alone]
    for number, (begun, shared) in enumerate(
        [(0, 18), (1, 9), (0, 8), (0, 18), (1, 9), (0, 17), (1, 10), (0, 9), (0, 18), (1, 9)]
    ):
        own = rig.sequence(96)
        fork = Stream(rig, trunks[begun].pages[:shared] + own.pages)
        fork.used = shared * rig.page_size
        rig.forward(Step(fork, tokens_of(1 + number, number)))
        found.append(fork)
    return found


def forked(rig: Rig, _: Change) -> torch.Tensor:
    """Logits of some steps of these, with guesses, a mask, and a prompt that attends in tiles."""
    sequences = forks(rig)
    found = []
    for seed in range(3):
        counts = [1, 1, 1, 2, 1, 1, 5, 1, 1, 1, 60 if seed == 2 else 1]
        steps = [
            Step(s, tokens_of(n, seed + i), outputs=n)
            for i, (s, n) in enumerate(zip(sequences, counts, strict=True))
        ]
        if seed == 1:
            keys = steps[4].sequence.used + 1
            steps[4].mask = runs_of(np.random.default_rng(0).random((1, keys)) < 0.6)
        found += rig.forward(*steps)
    return torch.cat(found)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of each step, how many keys its rows share."""
    found: list[list[int]] = []
    library = native.library()
    assert library is not None
    find = library.find_shared

    def noted(model: Any, step: Any, shared: int, leaders: int) -> int:
        any_of_them = int(find(model, step, shared, leaders))
        rows = step._obj.rows
        found.append((ctypes.c_int64 * rows).from_address(shared)[:] if any_of_them else [0] * rows)
        return any_of_them

    monkeypatch.setattr(library, "find_shared", noted)
    return found


def test_rows_attend_together_to_what_they_share(folder: Path, groups: list[list[int]]) -> None:
    assert_as_by_layers(folder, read=forked)
    first, masked, prompt = groups[-3:]
    # Two rows are the third fork's, five the sixth's; three that share 128 keys are too few.
    assert first == [0, 256, 128, 0, 0, 256, 128, *[256] * 5, 128, 0, 256, 128]
    assert masked == [*first[:5], 0, *first[6:]]
    assert prompt[-60:] == [0] * 60


def test_rows_of_a_deterministic_model_attend_alone(
    tmp_path: Path, groups: list[list[int]]
) -> None:
    forked(served(make("groups of 3", tmp_path), deterministic=True), list)
    assert not groups


def with_masks(steps: list[Step]) -> list[Step]:
    """A program's own: of keys that come later, of a block that no input sees, of a blind input."""
    for i in (1, 2, 3):
        own = steps[i]
        keys = own.sequence.used + len(own.tokens)
        seen = np.random.default_rng(keys).random((len(own.tokens), keys)) < 0.6
        seen[:, 120:260] = False
        seen[-1] &= i != 1
        seen[:-1, :128] &= i != 3  # a block that the last input alone sees
        own.mask = runs_of(seen)
    return steps


def test_masks_of_a_program_are_those_of_the_layers(folder: Path) -> None:
    assert_as_by_layers(folder, with_masks)


def with_adapters(steps: list[Step]) -> list[Step]:
    for step, adapter in zip(steps, (1, 0, -1, 1, 0), strict=True):
        step.adapter = adapter
    return steps


@pytest.mark.parametrize("name", ["groups of 3", "one for 7"])
def test_adapters_are_those_of_the_layers(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    some = make_adapter(folder, tmp_path / "some", seed=1, r=7)
    # Ranks of queries, keys and values are side by side: more than `step.c` takes at once.
    every = make_adapter(
        folder, tmp_path / "all", seed=2, r=200, lora_alpha=4, target_modules="all-linear"
    )
    assert_as_by_layers(folder, with_adapters, adapters={"some": str(some), "every": str(every)})


def test_gates_that_are_far_from_zero(tmp_path: Path) -> None:
    """Sigmoids of less than -88, whose exponential has no number."""
    folder = make("groups of 3", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "gate_proj" in name]:
        tensors[name] *= 40
    for name in [name for name in tensors if "down_proj" in name]:
        tensors[name] /= 40
    assert_as_by_layers(plain_copy(folder, tmp_path / "far", tensors))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="arm64 has one variant, for all CPUs")
def test_a_cpu_without_what_the_variants_need(
    other_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(KEEPING_CC))
    flags = ["-march=x86-64" if "-march" in flag else flag for flag in FLAGS]
    monkeypatch.setattr(variants, "FLAGS", tuple(flags))
    assert_multiplies(weight(112, 192, 32, 4, True), weight(80, 192, 32, 8, False), integers=True)
    assert_as_by_layers(make("alone", tmp_path), integers=True)
    folder = other_cache / "native"
    assert [file.suffix for file in folder.iterdir()] == [".so"]
    assert not folder.stat().st_mode & 0o077


def test_clang_is_asked_in_its_own_words(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho Apple clang version 17.0.0\n")
    compiler.chmod(0o755)
    flags = flags_for(str(compiler), FLAGS)
    assert flags[flags.index("-fopenmp") - 1] == "-Xclang"
    assert "-fno-tree-pre" not in flags
    assert flags_for("gcc", FLAGS) == FLAGS


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_of_a_wheel(
    variant: str, other_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is right on a CPU that has what it needs, keeps its sums in registers, and nothing is
    compiled beside it.
    """
    needed = VARIANTS[variant]
    cpuinfo = f"flags\t: {'' if variant == 'arm64' else 'sse2'} {' '.join(needed)}\n"
    assert best_variant(cpuinfo) == variant
    if variant not in variants_of(str(KEEPING_CC)):
        pytest.skip("the compiler makes code for another machine")
    assert best_variant(cpuinfo.replace("avx2", "")) == "sse2"
    library = tmp_path / f"{variant}.so"
    flags = variant_flags(variant)
    assert {"-O3", "-fopenmp", "-fPIC"} <= {*flags}
    compile_library(str(KEEPING_CC), flags, SOURCE, library)
    loops = product_loops(library)
    assert loops or variant == "avx512"  # whose products are of float32
    assert not [loop for loop in loops if on_the_stack(loop)]
    if not set(Path("/proc/cpuinfo").read_text().split()).issuperset(needed):
        pytest.skip(f"this CPU cannot run {variant}")
    monkeypatch.setattr(native, "shipped_folder", lambda _: tmp_path)
    monkeypatch.setattr(native, "best_variant", lambda _: variant)
    assert_multiplies(weight(112, 192, 32, 4, True), weight(80, 192, 32, 8, False))
    test_the_largest_sums()
    assert_as_by_layers(make("alone", tmp_path), integers="avx512f" not in needed)
    assert not (other_cache / "native").exists()


def test_a_kernel_of_a_wheel_that_cannot_be_loaded_is_compiled_here(
    other_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.setattr(native, "shipped_folder", lambda _: tmp_path)
    monkeypatch.setattr(native, "best_variant", lambda _: "broken")
    monkeypatch.setattr(variants, "FLAGS", [flag.replace("-O3", "-O0") for flag in FLAGS])
    assert native.library() is not None
    assert [file.suffix for file in (other_cache / "native").iterdir()] == [".so"]


def test_a_system_that_does_not_tell_its_cpu_has_no_kernels(
    other_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold(_: str) -> str:
        raise FileNotFoundError("/proc/cpuinfo")

    monkeypatch.setattr(native, "shipped_folder", lambda _: tmp_path)
    monkeypatch.setattr(native, "best_variant", untold)
    assert native.library() is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_depends_on_no_other_and_on_no_thread(dtype: str, tmp_path: Path) -> None:
    rig = served(make("groups of 3", tmp_path), dtype)
    sequences = started(rig)
    torch.set_num_threads(2)
    together = rig.forward(*step(sequences, 0))
    torch.set_num_threads(1)
    for sequence, count in zip(sequences[:4], COUNTS, strict=False):
        sequence.used -= count
    # With AMX a row alone is multiplied otherwise than several: there the last bits may differ.
    tiles = dtype == "bfloat16" and torch.cpu.get_capabilities().get("amx_tile", False)
    for alone, found in zip(step(sequences, 0), together, strict=True):
        logits = rig.forward(alone)[0]
        if tiles:
            torch.testing.assert_close(logits, found, atol=0.15, rtol=0.02)
        else:
            assert torch.equal(logits, found)


def test_what_no_step_is_runs_by_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = served(make_family(tmp_path / "model", "llama"))
    sequence = rig.sequence(128)
    rig.forward(Step(sequence, tokens_of(30)))
    fused, answers = FusedSteps.run, []

    def watched(*arguments: Any) -> bool:
        answers.append(fused(*arguments))
        return answers[-1]

    monkeypatch.setattr(FusedSteps, "run", watched)
    rig.forward(Step(sequence, tokens_of(MOST_INPUTS)))
    rig.forward(Step(sequence, tokens_of(MOST_INPUTS + 1)))
    rig.forward(Step(sequence, tokens_of(1), mask=runs_of(causal(32 + 2 * MOST_INPUTS)[-1:])))
    rig.forward(Step(sequence, tokens_of(1), observed=1))
    assert answers == [True, True, True, False]


@pytest.mark.parametrize(
    ("family", "more"),
    [("gemma2", {}), ("qwen3-moe", {}), ("olmo2", {}), ("llama", {"kv_dtype": "fp8"})],
)
def test_models_of_other_kinds_run_by_layers(
    family: str, more: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_family(tmp_path / "model", family)
    assert Rig(folder, quantize="int8", **more).model.fused_steps is None


def test_a_plain_model_runs_by_layers(tmp_path: Path) -> None:
    assert Rig(make_family(tmp_path / "model", "llama")).model.fused_steps is None


@pytest.mark.skipif(
    not multiplies_bfloat16(torch.empty(16, 16, dtype=torch.bfloat16)),
    reason="on this CPU products of bfloat16 are oneDNN's",
)
def test_weights_in_bfloat16(folder: Path) -> None:
    exact = decoded(Rig(folder, pages=128, dtype="float32"))
    rig, layers = (Rig(folder, pages=128, dtype="bfloat16") for _ in range(2))
    assert rig.model.fused_steps is not None
    error = (decoded(by_layers(layers)) - exact).norm()
    assert (decoded(rig) - exact).norm() < 1.25 * error
