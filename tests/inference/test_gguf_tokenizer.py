"""Tokenizers made of a GGUF's metadata."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import small_tokenizer
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import Split
from transformers import GemmaTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from pie_control.models.tokenizer import TextCodec
from pie_inference.checkpoints.gguf_tokenizer import MAX_TOKEN, GgufTokenizer
from pie_inference.errors import LoadError
from pie_py.models.splits import SPLITS

ODD = random.Random(5)
PARTS = [
    *("a", "B", "fox", "The", "1", "22", "-", "_", "...", "don't", "'S", "<|end|>", "<s>", "</s>"),
    *("\u00e9", "e\u0301", "\u00df", "\u00bd", "\uff12", "\ufb01", "\u4e2d", "\u65e5\u672c"),
    *("\ud55c", "\u05e9\u05dc", "\u0645\u0631", "\u0928\u092e\u0938", "\U0001f600"),
    *("\x00", "\x07", "\x7f", "\u200d", "\ufeff"),
]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u3000", "\u00a0", ""]


def odd_texts(count: int) -> list[str]:
    def one() -> str:
        return "".join(ODD.choice([*PARTS, *SPACES]) for _ in range(ODD.randrange(16)))

    def any_characters() -> str:
        ranges = [(32, 127), (0, 0x300), (0x300, 0xD800), (0xE000, 0x20000)]
        return "".join(chr(ODD.randrange(*ODD.choice(ranges))) for _ in range(ODD.randrange(16)))

    return [one() if i % 2 else any_characters() for i in range(count)]


TEXTS = odd_texts(2000)


def byte_level(pre: str | None, vocab: dict[str, int], merges: list[str]) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": sorted(vocab, key=lambda text: vocab[text]),
        "tokenizer.ggml.merges": merges,
    }


def made(metadata: dict[str, Any]) -> Tokenizer:
    found = GgufTokenizer(metadata, "model.gguf")
    return Tokenizer.from_str(found.files()["tokenizer.json"])


def codec(metadata: dict[str, Any], folder: Path) -> TextCodec:
    for name, content in GgufTokenizer(metadata, "model.gguf").files().items():
        (folder / name).write_text(content, encoding="utf-8")
    return TextCodec(folder)


def test_byte_level_tokens_are_those_of_the_checkpoint() -> None:
    reference = small_tokenizer().backend_tokenizer
    described = json.loads(reference.to_str())
    merges = [" ".join(merge) for merge in described["model"]["merges"]]
    metadata = byte_level("gpt-2", described["model"]["vocab"], merges)
    special = {token["id"] for token in described["added_tokens"]}
    count = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.token_type"] = [3 if i in special else 1 for i in range(count)]
    tokenizer = made(metadata)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_gemma_4_has_merges_of_characters() -> None:
    merges = ["\n \n", "▁ ▁", "▁▁ ▁▁", "▁ f", "o x", "▁f ox", "T h", "Th e", "1 1", "日 本"]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<turn|>"]
    octets = [f"<0x{octet:02X}>" for octet in range(256)]
    letters = sorted(set("".join(merges)) - {" "})
    joined = [merge.replace(" ", "") for merge in merges]
    texts = list(dict.fromkeys([*special, *octets, *letters, *joined]))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    reference = GemmaTokenizer({text: i for i, text in enumerate(texts)}, pairs)
    reference.add_special_tokens({"additional_special_tokens": ["<turn|>"]})
    count = len(special)
    metadata = {
        "general.architecture": "gemma4",
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3] * count + [6] * 256 + [1] * (len(texts) - count - 256),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    tokenizer = made(metadata)
    for text in [*TEXTS, "The  fox\n\n\n11日本<turn|>"]:
        ids = tokenizer.encode(text).ids
        assert ids == [2, *reference.encode(text, add_special_tokens=False)]
        assert tokenizer.decode(ids[1:], skip_special_tokens=False) == text
    assert GgufTokenizer(metadata, "model.gguf").ends == [1, texts.index("<turn|>")]


MERGES = ["Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "1 1", "Ġ 1", "a b", "Ġ ab", "e Ì", "eÌ ģ", "Ã ©"]
SMALL = [*sorted(bytes_to_unicode().values()), *(merge.replace(" ", "") for merge in MERGES)]


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        (
            "smollm",
            {
                "\n\n1.": ["ĊĊ", "1", "."],
                "    1": ["ĠĠĠĠ", "1"],
                "ab  111 ab": ["ab", "ĠĠ", "1", "1", "1", "Ġab"],
            },
        ),
        ("gpt-2", {"\n\n1.": ["Ċ", "Ċ", "1", "."], " 111": ["Ġ", "11", "1"]}),
        ("qwen2", {"e\u0301": ["Ã©"], "\n\n1": ["ĊĊ", "1"]}),
    ],
)
def test_texts_are_split_as_the_file_says(pre: str, wanted: dict[str, list[str]]) -> None:
    tokenizer = made(byte_level(pre, {text: i for i, text in enumerate(SMALL)}, MERGES))
    for text, parts in wanted.items():
        assert tokenizer.encode(text).tokens == parts


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_every_way_to_split_loses_no_character(name: str) -> None:
    described = GgufTokenizer(
        byte_level(name, {text: i for i, text in enumerate(SMALL)}, MERGES), "model.gguf"
    ).files()["tokenizer.json"]
    tokenizer = Tokenizer.from_str(described)
    tokenizer.normalizer = None
    tokenizer.decoder = ByteLevel()
    for text in TEXTS[:200]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    known = GGUF_PRE_TOKENIZER_SPLITS.get(name)
    if known is not None:  # transformers' own table
        [split, _] = json.loads(described)["pre_tokenizer"]["pretokenizers"]
        theirs, ours = (
            Split(Regex(pattern), "isolated") for pattern in (known, split["pattern"]["Regex"])
        )
        for text in TEXTS[:200]:
            assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


SPECIAL = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentence_piece(**more: Any) -> dict[str, Any]:
    """Characters, and 300 pieces that are made of two others each, in a random order of scores."""
    pieces = ["\u2581", *"abcdefTh1\u4e2d\u00e9\n", "\u65e5", "\u0301"]
    rng = random.Random(3)
    while len(pieces) < 300:
        piece = rng.choice(pieces) + rng.choice(pieces)
        if piece not in pieces and len(piece) < 9:
            pieces.append(piece)
    scores = [0.0] * len(SPECIAL) + [-float(i) for i in rng.sample(range(1, 999), len(pieces))]
    tokens = [*SPECIAL, *pieces, "<tool>", "    "]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*scores, -1000.0, -1000.0],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4, 4],
        **more,
    }


def merged(metadata: dict[str, Any], text: str) -> list[int]:
    """What llama.cpp does: of neighbours that are a token together those with the highest score
    become one, the first of equals; characters that are no token are their bytes.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    scores = metadata["tokenizer.ggml.scores"]
    parts = list(text.replace(" ", "\u2581"))
    while True:
        joined = [a + b for a, b in itertools.pairwise(parts)]
        known = [(-scores[ids[token]], at) for at, token in enumerate(joined) if token in ids]
        if not known:
            break
        _, at = min(known)
        parts[at : at + 2] = [joined[at]]
    found = []
    for part in parts:
        found += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return found


@pytest.mark.parametrize("prefix", [None, True, False])
def test_pieces_are_merged_by_score(prefix: bool | None) -> None:
    metadata = sentence_piece()
    if prefix is not None:
        metadata["tokenizer.ggml.add_space_prefix"] = prefix
    before = "" if prefix is False else " "
    tokenizer = made(metadata)
    rng = random.Random(1)
    alphabet = "aabbcdefTh11 \u4e2d\u00e9\n \u65e5\u0301xyz\U0001f600"
    for _ in range(2000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(20))).replace("    ", "a")
        wanted = merged(metadata, before + text) if text else []
        assert tokenizer.encode(text, add_special_tokens=False).ids == wanted
        assert tokenizer.decode(wanted) == text
    tool = metadata["tokenizer.ggml.tokens"].index("<tool>")
    assert tokenizer.encode("b<tool>a</s>").ids == [
        1,
        *merged(metadata, before + "b"),
        tool,
        *merged(metadata, before + "a"),
        2,
    ]
    assert tokenizer.encode("    ", add_special_tokens=False).ids == [tool + 1]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, [1]),
        ({"add_bos_token": False}, []),
        ({"add_eos_token": True}, [1, 2]),
        ({"add_bos_token": False, "add_eos_token": True}, [2]),
        ({"bos_token_id": 5}, [5]),
    ],
)
def test_what_stands_around_a_text(flags: dict[str, Any], wanted: list[int]) -> None:
    metadata = sentence_piece(**{f"tokenizer.ggml.{name}": flag for name, flag in flags.items()})
    assert made(metadata).encode("").ids == wanted


def test_ends_and_templates(tmp_path: Path) -> None:
    metadata = sentence_piece()
    metadata["tokenizer.ggml.eot_token_id"] = 300
    metadata["tokenizer.chat_template"] = "plain {{ messages[0].content }}{{ eos_token }}"
    metadata["tokenizer.chat_template.tool_use"] = "tools {{ messages[0].content }}"
    assert GgufTokenizer(metadata, "model.gguf").ends == [2, 300]
    found = codec(metadata, tmp_path)
    assert found.end_token == 2
    assert found.around[0][0] == 1
    asked = {"messages": [{"role": "user", "content": "x"}]}
    assert found.apply_chat_template(json.dumps(asked), False) == "plain x</s>"
    with_tools = asked | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    assert found.apply_chat_template(json.dumps(with_tools), False) == "tools x"


def test_ends_are_found_by_their_texts() -> None:
    metadata = sentence_piece()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[-1] = "<end_of_turn>"
    assert GgufTokenizer(metadata, "model.gguf").ends == [2, len(tokens) - 1]
    tokens[-4:] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"]
    last = len(tokens) - 1
    # In OpenAI's harmony a message's end is not that of the answer.
    assert GgufTokenizer(metadata, "model.gguf").ends == [2, last - 1, last - 2]


def changed(**more: Any) -> dict[str, Any]:
    names = {"pre", "model", "tokens", "merges", "scores", "token_type", "bos_token_id"}
    return {f"tokenizer.ggml.{k}" if k in names else k: value for k, value in more.items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "t5"}, "tokenizers of the kind 't5' are not supported"),
        ({"model": 3}, "'tokenizer.ggml.model' is 3, not a text"),
        ({"model": "gpt2", "pre": "bailingmoe"}, r"has 'bailingmoe' as the way .*smollm"),
        ({"model": "gpt2", "pre": "default"}, "has 'default' as the way its texts are split"),
        ({"model": "gpt2", "pre": [1]}, r"has \[1\] as the way"),
        ({"model": "gpt2"}, "says nothing of the way its texts are split"),
        ({"model": "gpt2", "pre": "smollm"}, "merges' is no list of texts"),
        ({"model": "gpt2", "pre": "smollm", "merges": ["a"]}, "'a', not two tokens that make"),
        ({"model": "gpt2", "pre": "smollm", "merges": ["a xyz"]}, "'a xyz', not two tokens"),
        ({"tokens": [1, 2]}, "tokens' is no list of texts"),
        ({"tokens": []}, "tokens' is no list of texts"),
        ({"tokens": ["a", "a"]}, "has a token twice"),
        ({"tokens": ["a" * (MAX_TOKEN + 1)]}, "a token has more than 1024 characters"),
        ({"token_type": [1]}, "token_type' has no number for each token"),
        ({"scores": None}, "scores' has no number for each token"),
        ({"scores": [float("nan")] * 561}, "scores' has numbers that are not finite"),
        ({"bos_token_id": 10**6}, "bos_token_id' is 1000000, no number of a token"),
        ({"bos_token_id": True}, "bos_token_id' is True, no number of a token"),
    ],
)
def test_what_is_damaged_or_unknown_is_refused(change: dict[str, Any], words: str) -> None:
    metadata = sentence_piece(**changed(**change))
    with pytest.raises(LoadError, match=rf"model\.gguf.*{words}"):
        GgufTokenizer(metadata, "model.gguf").files()
