"""The tokenizer: any text survives it, names are cut alike everywhere, targets are what is to be
learnt.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from examples.pie_tiny.corpus.mixture import draw
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.corpus.words import HELD_OUT_NOUNS, HELD_OUT_VERBS, invented
from examples.pie_tiny.tokenizer import (
    IGNORED,
    SPACE,
    encode,
    save_tokenizer,
    train_tokenizer,
)
from pie_inference.checkpoints.loader import checkpoint_folder

SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("test", samples=1000)


@given(before=st.sampled_from(("send_mail", " a", "x")), number=st.integers(1, 99))
def test_an_estimated_time_is_one_token(tokenizer: Tokenizer, before: str, number: int) -> None:
    time = f"~{number:02d}"
    alone = tokenizer.encode(before, add_special_tokens=False).tokens
    assert tokenizer.encode(before + time, add_special_tokens=False).tokens == [*alone, time]


@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@given(seed=SEEDS, held_out=st.booleans())
def test_a_name_is_cut_alike_with_and_without_a_space(
    tokenizer: Tokenizer, seed: int, held_out: bool
) -> None:
    name = invented(Random(seed), Split(held_out))
    alone = tokenizer.encode(name, add_special_tokens=False).tokens
    spaced = tokenizer.encode(" " + name, add_special_tokens=False).tokens
    assert spaced in ([SPACE + alone[0], *alone[1:]], [SPACE, *alone])


@given(number=st.integers(0, 10_000))
def test_targets_are_what_the_model_writes(tokenizer: Tokenizer, number: int) -> None:
    sample = draw("targets", number, Split())
    [(ids, targets)] = encode(tokenizer, [sample])
    assert tokenizer.decode(ids, skip_special_tokens=False) == sample.text
    learned = [token for token in targets if token != IGNORED]
    written = "".join(piece.text for piece in sample.pieces if piece.learned)
    assert tokenizer.decode(learned, skip_special_tokens=False) == written
    assert all(target in (IGNORED, token) for token, target in zip(ids, targets, strict=True))


def test_transformers_reads_it_and_its_chat_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (0, 1)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|begin|><|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\n"
    assert (
        theirs(text, add_special_tokens=False)["input_ids"]
        == tokenizer.encode(text, add_special_tokens=False).ids
    )


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """The tokens of the shipped tokenizer that training shows, of a small part of it."""
    shipped = _shipped()
    texts = [draw("shown", number, Split()).text for number in range(2000)]
    return {token for encoding in shipped.encode_batch(texts) for token in encoding.tokens}


@pytest.mark.parametrize("word", [*HELD_OUT_VERBS, *HELD_OUT_NOUNS])
def test_a_held_out_word_is_cut_into_tokens_that_training_shows(word: str, shown: set[str]) -> None:
    # What was a token of its own, and never shown, no model could copy.
    shipped = _shipped()
    for text in (word, f"{word}_{word}"):
        assert set(shipped.encode(text).tokens) <= shown


def _shipped() -> Tokenizer:
    found = checkpoint_folder("pie-tiny")
    return Tokenizer.from_file(str(found / "tokenizer.json"))
