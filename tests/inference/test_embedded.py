"""The embedded model: made once, the same each time, understood by transformers."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from model_rig import Rig, Step
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from pie_inference import embedded
from pie_inference.loader import checkpoint_folder
from pie_py.config import EMBEDDED_MODEL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_folder(EMBEDDED_MODEL, tmp_path_factory.mktemp("cache"))


def test_transformers_loads_it_and_agrees(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(model, LlamaForCausalLM)
    size = sum(p.numel() for p in model.parameters())
    assert 2e6 < size < 3.5e6
    tokens = AutoTokenizer.from_pretrained(folder)("The capital of France is")["input_ids"]
    rig = Rig(folder, dtype="float32")
    (found,) = rig.forward(Step(rig.sequence(len(tokens)), tokens, outputs=len(tokens)))
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_its_tokenizer_keeps_every_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) <= 4096
    for text in ("", "Hello, world!\n\n  indented", "日本語 🙂 \x00\t", "a" * 100):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert tokenizer("<|user|>")["input_ids"] == [3]


def test_its_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ("<|begin|><|system|>\nBe short.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n")


def test_it_is_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    again = checkpoint_folder(EMBEDDED_MODEL, tmp_path)
    assert again != folder
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted(file.name for file in again.iterdir())
    for name in names:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_it_is_not_made_again(folder: Path) -> None:
    cache = folder.parent.parent
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert embedded.folder(cache) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        folders = pool.map(embedded.folder, [tmp_path] * 3)
    assert len(set(folders)) == 1
    assert list((tmp_path / "models").iterdir()) == [folders[0]]  # nothing half-made is left
    assert json.loads((folders[0] / "config.json").read_text())["model_type"] == "llama"
