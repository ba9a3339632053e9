"""A tokenizer of Hugging Face's files, made of what a GGUF says of its own."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_py.models.splits import SPLITS, Splits

# Characters of a token, and of all: each is a place where two tokens may be merged.
MAX_TOKEN, MAX_TOKENS = 1024, 1 << 23
_SPACE = "\u2581"  # stands for one in SentencePiece
_TEMPLATE = "tokenizer.chat_template"
# Texts of tokens that end what a model says. Files often name only one of them.
_ENDS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"),
    *("<|endoftext|>", "<|end_of_text|>", "<EOT>", "<end_of_turn>", "<end_of_utterance>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<turn|>",
)
# Tokens of Phi 3 behind which white space stays; the others eat it.
_KEPT_SPACES = ("<unk>", "<s>", "<|endoftext|>")


class _Type(IntEnum):
    """The purpose of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufTokenizer:
    """The tokens of a GGUF, and how texts become such. Raises `LoadError` for what is damaged, or
    would give other tokens than those that the model was trained with.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        """Takes a GGUF's metadata, and its name for errors."""
        self._metadata, self._where = metadata, where
        self._fields = Fields(metadata, where)
        self.model = self._fields.text("tokenizer.ggml.model", "none")
        if self.model not in ("gpt2", "llama", "gemma4"):
            raise LoadError(
                f"{where}: tokenizers of the kind {reprlib.repr(self.model)} are not supported"
                " (supported: 'gpt2', 'llama', 'gemma4'); take the model's safetensors"
            )
        self._splits = self._named_splits() if self.model == "gpt2" else None
        # Those without a text get one, as in llama.cpp.
        self.tokens = [
            text or f"[EMPTY_{i}]" for i, text in enumerate(self._texts("tokenizer.ggml.tokens"))
        ]
        self._ids = {text: i for i, text in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            raise LoadError(f"{where}: 'tokenizer.ggml.tokens' has a token twice")
        sizes = [len(text) for text in self.tokens]
        if max(sizes) > MAX_TOKEN or sum(sizes) > MAX_TOKENS:
            raise LoadError(
                f"{where}: a token has more than {MAX_TOKEN} characters, or all have more than"
                f" {MAX_TOKENS}"
            )
        self._types = self._numbers("tokenizer.ggml.token_type", int, _Type.NORMAL)

    @property
    def bos(self) -> int | None:
        """The token that begins a text, if there is one."""
        return self._special("bos", 1)

    @property
    def ends(self) -> list[int]:
        """The tokens that end what a model says, the text's own end first."""
        named = [self._special("eos", 2), self._special("eot"), self._special("eom")]
        found = [i for i in named if i is not None]
        found += [self._ids[text] for text in _ENDS if text in self._ids]
        if {"<|return|>", "<|call|>"} <= self._ids.keys() and "<|end|>" in self._ids:
            # Ends only a message of several, in OpenAI's harmony.
            found = [i for i in found if i != self._ids["<|end|>"]]
        return list(dict.fromkeys(found))

    def files(self) -> dict[str, str]:
        """The content of tokenizer.json and tokenizer_config.json."""
        parts = self._byte_level() if self._splits is not None else self._sentence_piece()
        described = {
            "version": "1.0",
            "added_tokens": self._added(),
            "post_processor": self._frame(),
            **parts,
        }
        if self._splits is not None:
            self._splits.apply(described)
        return {
            "tokenizer.json": json.dumps(described, ensure_ascii=False),
            "tokenizer_config.json": json.dumps(self._settings(), ensure_ascii=False, indent=1),
        }

    def _byte_level(self) -> dict[str, Any]:
        merges = self._named_merges()
        return {
            "model": {"type": "BPE", "vocab": self._ids, "merges": merges},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        }

    def _named_merges(self) -> list[tuple[str, str]]:
        merges = []
        for text in self._texts("tokenizer.ggml.merges"):
            # A token may begin with a space.
            at = text.find(" ", 1)
            left, right = text[:at], text[at + 1 :]
            if at < 0 or not {left, right, left + right} <= self._ids.keys():
                raise LoadError(
                    f"{self._where}: 'tokenizer.ggml.merges' has {text[:80]!r}, not two tokens that"
                    " make a third"
                )
            merges.append((left, right))
        return merges

    def _sentence_piece(self) -> dict[str, Any]:
        """Merges that the file names, or of every two tokens that make a third, those of a high
        score first; characters that are no tokens become their bytes.
        """
        named = self.model == "gemma4"
        prefix = self._fields.flag("tokenizer.ggml.add_space_prefix", not named)
        prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        unknown = self._special("unknown", 0)
        space = {"pattern": {"String": " "}, "content": _SPACE}
        return {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [*prepend, {"type": "Replace", **space}],
            },
            "pre_tokenizer": None,
            "model": {
                "type": "BPE",
                "vocab": self._ids,
                "merges": self._named_merges() if named else self._merges(),
                "unk_token": None if unknown is None else self.tokens[unknown],
                "fuse_unk": True,
                "byte_fallback": True,
            },
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    *strip,
                ],
            },
        }

    def _merges(self) -> list[tuple[str, str]]:
        scores = self._numbers("tokenizer.ggml.scores", float)
        ids, found = self._ids, []
        unmerged = (_Type.UNKNOWN, _Type.CONTROL, _Type.BYTE)
        for text, score, kind in zip(self.tokens, scores, self._types, strict=True):
            if kind in unmerged:
                continue
            for at in range(1, len(text)):
                left, right = text[:at], text[at:]
                if left in ids and right in ids:
                    found.append((-score, ids[left], ids[right]))
        found.sort()
        return [(self.tokens[left], self.tokens[right]) for _, left, right in found]

    def _added(self) -> list[dict[str, Any]]:
        """Tokens that are found in a text before anything else is."""
        eats = self.model == "llama" and self._metadata.get("general.architecture") == "phi3"
        special = {*self.ends, *(i for i, kind in enumerate(self._types) if _is_special(kind))}
        return [
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": eats and i in special and text not in _KEPT_SPACES,
                "normalized": False,
                "special": i in special,
            }
            for i, (text, kind) in enumerate(zip(self.tokens, self._types, strict=True))
            if i in special or kind == _Type.USER_DEFINED
        ]

    def _frame(self) -> dict[str, Any] | None:
        """The tokens before and behind every text."""
        first = self._splits is None or self._splits.first
        bos = self.bos if self._fields.flag("tokenizer.ggml.add_bos_token", first) else None
        add_end = self._fields.flag("tokenizer.ggml.add_eos_token", False)
        around = [bos, self._special("eos", 2) if add_end else None]
        if around == [None, None]:
            return None
        texts = [None if i is None else self.tokens[i] for i in around]
        before, after = (
            [{"SpecialToken": {"id": text, "type_id": 0}}] if text is not None else []
            for text in texts
        )
        parts = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after]
        return {
            "type": "TemplateProcessing",
            "single": parts,
            "pair": [*parts, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                text: {"id": text, "ids": [i], "tokens": [text]}
                for text, i in zip(texts, around, strict=True)
                if text is not None
            },
        }

    def _settings(self) -> dict[str, Any]:
        special = {
            "bos_token": self.bos,
            "eos_token": self._special("eos", 2),
            "unk_token": self._special("unknown", 0),
            "pad_token": self._special("padding"),
        }
        settings: dict[str, Any] = {
            name: self.tokens[i] for name, i in special.items() if i is not None
        }
        templates = {"default": self._fields.text(_TEMPLATE, "")}
        for key in self._metadata:
            if key.startswith(f"{_TEMPLATE}."):
                templates[key.removeprefix(f"{_TEMPLATE}.")] = self._fields.text(key, "")
        found = [{"name": name, "template": text} for name, text in templates.items() if text]
        if found:
            settings["chat_template"] = found
        return settings

    def _special(self, name: str, usual: int | None = None) -> int | None:
        """A token with a task; `usual` is the one of SentencePiece if the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        found = self._metadata.get(key, usual if self.model == "llama" else None)
        if found is not None and (type(found) is not int or not 0 <= found < len(self.tokens)):
            raise LoadError(
                f"{self._where}: {key!r} is {reprlib.repr(found)}, no number of a token"
            )
        return None if found is None else int(found)

    def _named_splits(self) -> Splits:
        name = self._metadata.get("tokenizer.ggml.pre")
        if not isinstance(name, str) or name not in SPLITS:
            said = "says nothing of" if name is None else f"has {reprlib.repr(name)} as"
            raise LoadError(
                f"{self._where} {said} the way its texts are split into tokens"
                f" (`tokenizer.ggml.pre`); known are {', '.join(sorted(SPLITS))}. Take the model's"
                " safetensors, or a GGUF that a newer llama.cpp has converted"
            )
        return SPLITS[name]

    def _texts(self, key: str) -> list[str]:
        found = self._fields.items(key) or []
        if not found or not isinstance(found[0], str):
            raise LoadError(f"{self._where}: {key!r} is no list of texts")
        return found

    def _numbers(self, key: str, kind: type, usual: int | None = None) -> list[Any]:
        """A number for each token; all are `usual`, if there is such, and the list lacks."""
        found = self._fields.items(key)
        if found is None and usual is not None:
            return [usual] * len(self.tokens)
        if found is None or len(found) != len(self.tokens) or type(found[0]) is not kind:
            raise LoadError(f"{self._where}: {key!r} has no number for each token")
        if not all(map(math.isfinite, found)):
            raise LoadError(f"{self._where}: {key!r} has numbers that are not finite")
        return found


def _is_special(kind: int) -> bool:
    return kind in (_Type.UNKNOWN, _Type.CONTROL)
