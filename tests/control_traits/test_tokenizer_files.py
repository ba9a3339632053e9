"""Tokenizers of odd checkpoints: as `transformers` reads them, or refused with the file's name."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, LlamaTokenizer

from pie_control.models.tokenizer import TextCodec
from pie_control.models.tokenizer_files import UnusableTokenizer

SPACE = "\u2581"
TEXTS = ["hi", " hi", "hi</s>hi", "<t>x", "a  b\n é", "", "<s> hi"]


def write(folder: Path, name: str, value: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def spm_like(folder: Path, **settings: Any) -> Path:
    """A tokenizer.json as converted from sentencepiece by the old rule: a space before all."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [SPACE, "h", "i", "a", "b", "x", "hi", f"{SPACE}hi"]
    merges = [("h", "i"), (SPACE, "hi")]
    model = models.BPE({t: i for i, t in enumerate(tokens)}, merges, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", **settings})
    return folder


def agree(folder: Path, *texts: str) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    ours, theirs = TextCodec(folder), AutoTokenizer.from_pretrained(folder)
    for text in texts or TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_only_the_configuration_names(
    tmp_path: Path, special: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = spm_like(tmp_path / "a", tokenizer_class="PreTrainedTokenizerFast")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    count = TextCodec(folder).id_limit
    known = {"0": "<unk>", "1": "<s>", "2": "</s>", str(count): "<t>"}
    facts = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    config["added_tokens_decoder"] = {
        i: {"content": text, "special": special or text != "<t>", "__type": "AddedToken", **facts}
        for i, text in known.items()
    }
    write(folder, "tokenizer_config.json", config)
    agree(folder)
    capfd.readouterr()  # of transformers
    assert TextCodec(folder).encode("<t>") == [count]
    assert not capfd.readouterr().out, "the library prints names that it does not know"
    assert (("<t>", count) in TextCodec(folder).special_tokens) == special
    config["added_tokens_decoder"] = {"4000": {"content": "<t>"}}
    write(folder, "tokenizer_config.json", config)
    with pytest.raises(UnusableTokenizer, match=r"tokenizer_config.json.*'<t>' the id 4000"):
        TextCodec(folder)


@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("prefix", [None, False])
def test_spaces_after_special_tokens(
    tmp_path: Path, legacy: bool | None, prefix: bool | None
) -> None:
    """`legacy` decides, for the files all say that every piece begins with a space."""
    facts = {"legacy": legacy, "add_prefix_space": prefix, "tokenizer_class": "LlamaTokenizer"}
    settings = {name: value for name, value in facts.items() if value is not None}
    folder = spm_like(tmp_path / "a", **settings)
    if legacy:  # this transformers reads `legacy` no more; the file is what it was trained with
        assert TextCodec(folder).encode("</s>hi") == [2, TextCodec(folder).encode("hi")[0]]
    else:
        agree(folder)


@pytest.mark.nightly
def test_sentencepiece_is_converted(tmp_path: Path) -> None:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps", "a small test of words"] * 50),
        model_writer=made,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(made.getvalue())
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"})
    write(tmp_path, "config.json", {"model_type": "llama"})
    theirs = LlamaTokenizer.from_pretrained(tmp_path)
    ours = TextCodec(tmp_path)
    for text in ["the quick fox", "é 😀", "</s>the", " a  b"]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode("é 😀 the fox")) == "é 😀 the fox"
    assert ours.vocabulary[ours.encode("é")[-1]] == "é".encode()[-1:]


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda f: f.mkdir(), "has no tokenizer.json"),
    "no json": (lambda f: write(f, "tokenizer.json", "{"), "tokenizer.json cannot be read"),
    "another json": (lambda f: write(f, "tokenizer.json", {}), "tokenizer.json cannot be read"),
    "wrong model": (
        lambda f: write(f, "tokenizer.model", "nothing"),
        "tokenizer.model cannot be converted",
    ),
    "wrong settings": (
        lambda f: write(spm_like(f), "tokenizer_config.json", [1]),
        "tokenizer_config.json holds no JSON object",
    ),
    "wrong template": (lambda f: spm_like(f, chat_template=[{"name": "x"}]), "the chat template"),
    "wrong token": (
        lambda f: spm_like(f, added_tokens_decoder={"3": "x"}),
        "tokenizer_config.json: added_tokens_decoder: token 3",
    ),
    "wrong defaults": (
        lambda f: write(spm_like(f), "generation_config.json", "x"),
        "generation_config.json cannot be read",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    make, words = BROKEN[name]
    make(tmp_path / "a")
    with pytest.raises(UnusableTokenizer, match=words):
        TextCodec(tmp_path / "a")


def test_end_token_and_defaults(tmp_path: Path) -> None:
    folder = spm_like(tmp_path / "a")
    assert TextCodec(folder).end_token == 2
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": True, "do_sample": True, "min_p": None}
    write(folder, "generation_config.json", config)
    assert TextCodec(folder).generation_defaults == {"temperature": 0.6, "top_p": 0.9}
