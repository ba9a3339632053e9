"""Weights that are put in place of others compute as if the model had been loaded with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import make_adapter
from support.families import make_family
from support.model_rig import Rig, Step, tokens_of

from pie_inference.errors import LoadError
from pie_inference.layers.linear import _Packed
from pie_inference.loading.replacing import replace_weights

WHOLE = ("llama", "qwen2", "qwen3", "gemma2", "phi3", "glm", "smollm3", "granite", "qwen3-moe")
TOKENS = tokens_of(40)
QUERY = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def logits(rig: Rig) -> torch.Tensor:
    """Of a prompt, and of a step behind it."""
    sequence = rig.sequence(len(TOKENS))
    prompt = rig.forward(Step(sequence, TOKENS[:-1], outputs=3))
    found = torch.cat([*prompt, *rig.forward(Step(sequence, TOKENS[-1:]))])
    rig.release(sequence)
    return found


def file_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def saved(folder: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, folder / "new.safetensors")
    return folder / "new.safetensors"


@pytest.fixture(params=["kernels", "libraries"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libraries":
        monkeypatch.setattr("pie_inference.models.weights.multiplies_bfloat16", lambda *a, **b: 0)


@pytest.mark.parametrize(
    ("products", "dtype"),
    [("kernels", "float32"), ("kernels", "bfloat16"), ("libraries", "bfloat16")],
    indirect=["products"],
)
@pytest.mark.parametrize("family", WHOLE)
@pytest.mark.usefixtures("products")
def test_a_model_with_all_of_another_ones_weights(family: str, dtype: str, tmp_path: Path) -> None:
    folders = [make_family(tmp_path / f"{i}", family, dtype=dtype, seed=i) for i in (1, 2)]
    own, other = (Rig(folder, dtype=dtype) for folder in folders)
    before, wanted = logits(own), logits(other)
    assert not torch.equal(before, wanted)
    content = file_of(folders[1]).read_bytes()
    replace_weights(own.model, file_of(folders[1]))
    assert torch.equal(logits(own), wanted)
    replace_weights(own.model, file_of(folders[0]))
    assert torch.equal(logits(own), before)
    assert file_of(folders[1]).read_bytes() == content  # it is mapped, and not written to


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.usefixtures("products")
def test_rows(dtype: str, tied: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": dtype, "tie_word_embeddings": tied}
    own, other = (
        make_family(tmp_path / f"{seed}", "llama", seed=seed, **options) for seed in (1, 2)
    )
    mixed, new = load_file(file_of(own)), load_file(file_of(other))
    parts = {QUERY: (3, 21), NORM: (1, 2), EMBEDDING: (5, 6)}
    if not tied:
        parts[HEAD] = (70, 300)
    given = {}
    for name, (first, end) in parts.items():
        given[f"{name}[{first}:{end}]"] = mixed[name][first:end] = new[name][first:end].clone()
    expected = tmp_path / "mixed"
    shutil.copytree(own, expected)
    save_file(mixed, file_of(expected), {"format": "pt"})
    rig = Rig(own, dtype=dtype)
    replace_weights(rig.model, saved(tmp_path, **given))
    assert torch.equal(logits(rig), logits(Rig(expected, dtype=dtype)))


def test_packed_weights_are_written_in_part() -> None:
    old, new = torch.randn(40, 32).bfloat16(), torch.randn(9, 32).bfloat16()
    x = torch.randn(3, 32).bfloat16()
    product = _Packed(old, None)
    product.write(7, new)
    old[7:16] = new
    assert torch.equal(product(x), _Packed(old, None)(x))


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[NORM][3] = torch.nan


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.update({QUERY: t[QUERY][1:]}), r"q_proj.weight is \[63, 64\], not \[64, 64\]"),
        (lambda t: t.update({f"{QUERY}[60:70]": t[QUERY][:10].clone()}), "has 64 rows"),
        (lambda t: t.update(nonsense=t[NORM].clone()), "nonsense: it has no tensor of this name"),
        (lambda t: t.update({NORM: t[NORM].int()}), "holds torch.int32"),
        (_nan, "not finite"),
        (lambda t: t.update({HEAD: t[EMBEDDING] + 1}), "its embedding: give"),
        (lambda t: t.clear(), "there are no tensors"),
    ],
)
def test_what_does_not_fit_changes_nothing(
    change: Callable[[dict[str, Any]], object], why: str, tmp_path: Path
) -> None:
    own, other = (
        make_family(tmp_path / f"{i}", "llama", seed=i, tie_word_embeddings=True) for i in (1, 2)
    )
    rig = Rig(own)
    before = logits(rig)
    tensors = load_file(file_of(other))
    change(tensors)
    with pytest.raises(LoadError, match=why):
        replace_weights(rig.model, saved(tmp_path, **tensors))
    assert torch.equal(logits(rig), before)
    same = load_file(file_of(other))
    replace_weights(rig.model, saved(tmp_path, **same, **{HEAD: same[EMBEDDING].clone()}))
    assert torch.equal(logits(rig), logits(Rig(other)))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    rig = Rig(make_family(tmp_path / "model", "llama"))
    (tmp_path / "bad").write_bytes(b"nonsense")
    for name in ("bad", "none"):
        with pytest.raises(LoadError, match=f"{name} cannot be read"):
            replace_weights(rig.model, tmp_path / name)


def test_weights_that_others_were_made_of_stay(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama")
    rig = Rig(folder, quantize="int8")
    with pytest.raises(LoadError, match="no tensor of this name that can be replaced"):
        replace_weights(rig.model, file_of(folder))
    configs: tuple[dict[str, Any], ...] = (
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"], "target_modules": ["q_proj"]},
    )
    for number, config in enumerate(configs):
        adapter = make_adapter(folder, tmp_path / f"adapter{number}", **config)
        rig = Rig(folder, adapters={"a": str(adapter)})
        with pytest.raises(LoadError, match="an adapter is loaded that was made of the weights"):
            replace_weights(rig.model, file_of(folder))
        rig.model.adapters.unload(0)
        replace_weights(rig.model, file_of(folder))
    rig = Rig(folder, adapters={"a": str(make_adapter(folder, tmp_path / "plain"))})
    replace_weights(rig.model, file_of(folder))
    with pytest.raises(LoadError, match="no tensor of this name"):
        replace_weights(
            Rig(make_family(tmp_path / "m", "deepseekv3")).model, file_of(tmp_path / "m")
        )
