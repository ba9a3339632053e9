"""Odd files of checkpoints, one by one: as `transformers` reads them, or refused by their name.

None may be read in another way without a word.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import (
    Edit,
    edited,
    edited_tensors,
    gone,
    make_llama,
    small_tokenizer,
    written,
)
from support.model_rig import Rig, assert_close, expected_logits
from tokenizers import processors
from transformers import AutoTokenizer

from pie_control.models.tokenizer import TextCodec
from pie_control.models.tokenizer_files import UnusableTokenizer
from pie_inference.checkpoints.loader import read_config, stop_tokens
from pie_inference.errors import LoadError

TEXTS = ["The quick fox", "a<|end|>b<t>é\n", " x", ""]


def rows(count: int) -> Edit:
    """Gives embedding and head another number of rows than the tokenizer has tokens."""

    def edit(folder: Path) -> None:
        size = len(small_tokenizer()) + count
        edited("config.json", vocab_size=size)(folder)
        both = ("model.embed_tokens.weight", "lm_head.weight")
        edited_tensors(lambda t: t.update({n: torch.randn(size, t[n].shape[1]) for n in both}))(
            folder
        )

    return edit


def around(first: str, last: str) -> Edit:
    """A tokenizer that puts special tokens around each text by itself."""

    def edit(folder: Path) -> None:
        tokenizer = small_tokenizer()
        known = {text: tokenizer.convert_tokens_to_ids(text) for text in (first, last) if text}
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}".strip(), special_tokens=list(known.items())
        )
        tokenizer.save_pretrained(folder)

    return edit


def named_only_in_settings(folder: Path) -> None:
    added = {str(len(small_tokenizer()) - 1): {"content": "<t>", "special": False}}
    rows(0)(folder)
    edited("tokenizer_config.json", added_tokens_decoder=added)(folder)


HEAD, DOWN = "lm_head.weight", "model.layers.1.mlp.down_proj.weight"
INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"
# How a checkpoint is made and spoiled; what the refusal names, or None if it is to be right.
ODD: dict[str, tuple[dict[str, Any], Edit, str | None]] = {
    "float16": ({"dtype": "float16"}, lambda _: None, None),
    "bfloat16": ({"dtype": "bfloat16"}, lambda _: None, None),
    "shards": ({"shards": 3}, lambda _: None, None),
    "stored inv_freq": ({}, edited_tensors(lambda t: t.update({INV_FREQ: torch.ones(8)})), None),
    "more rows than tokens": ({}, rows(64), None),
    "fewer rows than tokens": ({}, rows(-16), None),
    "tied, head stored": (
        {"tied": True},
        edited_tensors(lambda t: t.update({HEAD: t["model.embed_tokens.weight"].clone()})),
        None,
    ),
    "tied, other head stored": (
        {"tied": True},
        edited_tensors(lambda t: t.update({HEAD: -t["model.embed_tokens.weight"]})),
        None,
    ),
    "old names of rope": (
        {},
        edited(
            "config.json",
            rope_parameters=None,
            rope_theta=10_000.0,
            rope_scaling={"type": "linear", "factor": 2.0},
        ),
        None,
    ),
    "several ends in config.json": ({}, edited("config.json", eos_token_id=[1, 3]), None),
    "several ends in generation_config.json": (
        {},
        edited("generation_config.json", eos_token_id=[1, 2]),
        None,
    ),
    "begin by the tokenizer": ({}, around("<|begin|>", ""), None),
    "end by the tokenizer": ({}, around("<|begin|>", "<|end|>"), None),
    "tokens that only settings name": ({}, named_only_in_settings, "added_tokens_decoder"),
    "no tokenizer.json": ({}, gone("tokenizer.json"), "has no tokenizer.json"),
    "tokenizer.json cut off": (
        {},
        written("tokenizer.json", b'{"version": "1.0"'),
        "tokenizer.json cannot be read",
    ),
    "settings no object": (
        {},
        written("tokenizer_config.json", b"[1]"),
        "tokenizer_config.json holds no JSON object",
    ),
    "sampling defaults no object": (
        {},
        written("generation_config.json", b"1"),
        "generation_config.json",
    ),
}


def read(folder: Path) -> tuple[TextCodec, Rig]:
    """All of a checkpoint, as control process and worker read it."""
    return TextCodec(folder), Rig(folder)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_right_or_refused(name: str, tmp_path: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    options, spoil, reason = ODD[name]
    folder = make_llama(tmp_path / "model", **options)
    spoil(folder)
    if reason is not None:
        with pytest.raises((LoadError, UnusableTokenizer), match=reason):
            read(folder)
        return
    codec, rig = read(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert codec.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert codec.around[0][:1] == theirs.encode("")[:1]
    config = read_config(folder)
    wanted = config["eos_token_id"]
    if (folder / "generation_config.json").is_file():
        wanted = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert stop_tokens(folder, config) == ([wanted] if isinstance(wanted, int) else wanted)
    assert codec.end_token == theirs.eos_token_id
    tokens = list(range(5, 29))
    found, wanted_logits = rig.read(tokens), expected_logits(folder, tokens)
    if options.get("dtype", "float32") == "float32":
        assert_close(found, wanted_logits)
    else:
        assert (found.float() - wanted_logits).abs().max() < 0.05 * wanted_logits.abs().max()
