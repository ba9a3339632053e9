"""The embedded models: in the package, small, plain Llamas, understood by transformers, able to
speak.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.model_rig import Rig
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from examples.pie_tiny.corpus.sample import CALL, CLOSE, HEAD, INTR, TRAP
from examples.pie_tiny.corpus.world import subjects
from pie_inference.checkpoints.loader import EMBEDDED, checkpoint_folder, embedded_names
from pie_inference.errors import LoadError
from pie_py.config.model import EMBEDDED_MODEL

NAMES = embedded_names()
MAX_BYTES = 12_000_000  # of all of them: the package stays small


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    return checkpoint_folder(request.param)


def test_the_default_model_is_one_of_them() -> None:
    assert EMBEDDED_MODEL in NAMES
    with pytest.raises(LoadError, match=EMBEDDED_MODEL):
        checkpoint_folder("no-such-model")


def test_they_are_small() -> None:
    files = [file for file in EMBEDDED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES


def test_a_model_card_says_what_it_is_for(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "demonstration" in card


def test_transformers_loads_it_and_agrees(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(model, LlamaForCausalLM)
    assert model.config.max_position_embeddings >= 1024
    tokens = AutoTokenizer.from_pretrained(folder)("The capital of Velland is")["input_ids"]
    found = Rig(folder, dtype="float32").read(tokens)
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


def test_its_tokenizer_keeps_every_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) <= 4096
    for text in ("", "Hello, world!\n\n  indented", "日本語 🙂 \x00\t", "a" * 100):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    for token in (CALL, HEAD, CLOSE, INTR, TRAP, "<|user|>", "<|tool|>"):
        assert len(tokenizer(token, add_special_tokens=False)["input_ids"]) == 1


def test_its_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ("<|begin|><|system|>\nBe short.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n")


def test_it_knows_its_world() -> None:
    """Greedy completion of a fact, as the README shows it."""
    folder = checkpoint_folder(EMBEDDED_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    capital = next(country for country in subjects("country") if country.name == "Velland").facts[
        "capital"
    ]
    ids = tokenizer("The capital of Velland is", return_tensors="pt").input_ids
    with torch.inference_mode():
        answer = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer).startswith(f" {capital}")
