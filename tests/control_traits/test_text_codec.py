"""Text to tokens and back in the control process: the same for any text, and nobody else is held
up.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import small_tokenizer
from support.instances import failure

from pie_control.errors import MOST_VALUES, check_values
from pie_control.models.tokenizer import TextCodec


@functools.cache
def codec() -> TextCodec:
    folder = Path(tempfile.mkdtemp(prefix="pie-"))
    small_tokenizer().save_pretrained(folder)
    return TextCodec(folder)


def turns_of_others(work: Callable[[], Any]) -> int:
    """How often this thread has its turn while another one works."""
    turns = 0
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    return turns


@pytest.mark.parametrize("what", ["encode", "encode plain", "decode"])
def test_a_long_text_lets_other_threads_run(what: str) -> None:
    text = "ab cd. " * 300_000
    plain = codec().plain_encoder()
    tokens = codec().encode(text[:700]) * 3000
    work: dict[str, Callable[[], Any]] = {
        "encode": lambda: codec().encode(text),
        "encode plain": lambda: plain(text),
        "decode": lambda: codec().decode(tokens),
    }
    assert turns_of_others(work[what]) > 20  # of hundreds; two if the lock is held all the time


TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.sampled_from(["<|user|>", "<|end|>", "<|", " the", "\n\n"]),
    )
).map("".join)


@settings(max_examples=100)
@given(TEXTS)
def test_tokens_are_those_of_the_tokenizer(text: str) -> None:
    tokenizer = codec()._tokenizer
    tokens = codec().encode(text)
    assert tokens == tokenizer.encode(text, add_special_tokens=False).ids
    assert codec().decode(tokens) == tokenizer.decode(tokens, skip_special_tokens=False) == text
    assert codec().decode(codec().plain_encoder()(text)) == text


def test_the_tokenizer_is_told_about_threads() -> None:
    assert "TOKENIZERS_PARALLELISM" in os.environ


def test_messages_with_half_a_character() -> None:
    messages = r'[{"role": "user", "content": "%s"}]'
    assert "\U0001f600" in codec().apply_chat_template(messages % r"\ud83d\ude00", True)
    with failure("invalid-argument", "surrogates not allowed"):
        codec().apply_chat_template(messages % r"\ud83d", True)


@pytest.mark.parametrize("code", ["f(a, [b], {c: 1})", r'a = "\"", [\\', "\\"])
def test_what_stands_in_strings_is_no_value(code: str) -> None:
    """A session of a coding agent has some ten thousand commas in its sources."""
    check_values(json.dumps([{"role": "user", "content": code * MOST_VALUES}]), "messages")


@pytest.mark.parametrize("value", [1, "x", "\\", "],"])
def test_very_many_values_are_refused(value: Any) -> None:
    check_values(json.dumps([value] * (MOST_VALUES // 2 - 1)), "inputs")
    with failure("limit-exceeded", "inputs with", "in fewer values"):
        check_values(json.dumps([value] * (MOST_VALUES + 1)), "inputs")
    with failure("limit-exceeded", "inputs with"):
        check_values(json.dumps(['"'] * (4 * MOST_VALUES)), "inputs")
