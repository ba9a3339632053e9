"""Splits of texts, in whose parts BPE merges, by the name that a GGUF gives.

The names (`tokenizer.ggml.pre`) are those of llama.cpp's converter, which recognizes tokenizers by
what they make of one text; the patterns are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(after: str, digits: str) -> str:
    """Words end where lower case is followed by upper case; `after` may end them, too."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}{_UPPER}*{_LOWER}+{after}|{first}{_UPPER}+{_LOWER}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class Splits:
    """One way to split.

    Attributes:
        patterns: each splits the parts that those before it have left.
        whole: a part that is a token is taken as it is, whatever the merges make of it.
        composed: characters are composed first (Unicode's NFC).
        first: texts begin with the token for it, if a file does not say.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    composed: bool = False
    first: bool = False

    def apply(self, tokenizer: dict[str, Any]) -> None:
        """Sets it in the content of a tokenizer.json of byte-level BPE."""
        split = {"type": "Split", "behavior": "Isolated", "invert": False}
        bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        steps: list[dict[str, Any]] = [
            *({**split, "pattern": {"Regex": pattern}} for pattern in self.patterns),
            {**bytewise, "use_regex": False},
        ]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        tokenizer["normalizer"] = {"type": "NFC"} if self.composed else None
        tokenizer["model"]["ignore_merges"] = self.whole


_KINDS: dict[str, Splits] = {
    "smollm starcoder refact codeshell minerva-7b": Splits((r"\p{N}", _GPT2)),
    "command-r": Splits((r"\p{N}", _GPT2), composed=True),
    "gpt-2 phi-2 mpt": Splits((_GPT2,)),
    "olmo": Splits((_GPT2,), composed=True),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Splits(
        (_LLAMA3,), whole=True, first=True
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": Splits((_LLAMA3,)),
    "qwen2": Splits((_QWEN2,), composed=True),
    "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2": Splits((_QWEN2,)),
    "qwen35": Splits((_QWEN35,), composed=True),
    "seed-coder": Splits(
        (rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    ),
    "deepseek-coder": Splits(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    ),
    "deepseek-v3": Splits(
        (
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
        ),
    ),
    "tekken": Splits((_by_case("", r"\p{N}"),), whole=True, first=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Splits(
        (_by_case(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"),)
    ),
}
# None of them takes long for any text.
PATTERNS = frozenset(pattern for splits in _KINDS.values() for pattern in splits.patterns)
SPLITS = {name: splits for names, splits in _KINDS.items() for name in names.split()}
