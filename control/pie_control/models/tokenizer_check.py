"""Which tokenizers are known to be harmless, and how one that is not is read.

A tokenizer.json holds a program: patterns that backtrack without end, replacements that make a
gigabyte of a word, sizes for which the library asks the allocator. Files whose every step is known
to take time in proportion to the text are read, and used for short texts, in the control process;
all others are read in a confined process first, and all their texts are handled in those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog

from pie_control.confined.pool import call_alone
from pie_control.errors import ApiError, invalid
from pie_control.models.tokenizer import TextCodec, codec_of
from pie_control.models.tokenizer_files import TOKENIZER, UnusableTokenizer, reading
from pie_py.config.services import ConfinedConfig
from pie_py.models.checkpoint_files import read_object
from pie_py.models.splits import PATTERNS

log = structlog.get_logger("pie.tokenizer")

Around = tuple[list[int], list[int]]  # tokens before and behind a text

MAX_ID = 1 << 24  # what ids are below: there is a list with a place for each
# Of a file whose JSON is looked at in this process: in Python it takes many times its size.
_INLINE_BYTES = 16 << 20
_LIBRARIES, _TIMES = 160 << 20, 24  # bytes of the process, and for each byte of the file
_MOST_STEPS = 32
_MOST_ADDED = 1 << 13
_MOST_TEXT = 256  # characters of a token that is looked for, and of what a step puts in
_MOST_DATA = 1 << 21  # characters of a table in any step: those of SentencePiece have 300 000
_MOST_GROWTH = 8  # times a text, by all replacements together
_LINEAR = (
    *("Sequence", "ByteLevel", "Split", "Metaspace", "Digits", "Punctuation", "Whitespace"),
    *("WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts", "CharDelimiterSplit", "NFC", "NFD"),
    *("NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "BertNormalizer", "Prepend"),
    *("Replace", "ByteFallback", "Fuse", "TemplateProcessing", "BertProcessing"),
    "RobertaProcessing",
)
_PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}


def read_codec(folder: Path, confined: ConfinedConfig) -> TextCodec:
    """The tokenizer of a folder, which says whether it can be used in this process.

    Raises:
        UnusableTokenizer: if there is none, or it takes too much to be read.
    """
    file = folder / TOKENIZER
    size = file.stat().st_size if file.is_file() else 0
    with reading(file):
        trusted = 0 < size <= _INLINE_BYTES and _is_known(folder)
    around: Around | None = None
    if not trusted:
        try:
            around, trusted = call_alone(
                "reading it",
                min(confined.memory, _LIBRARIES + _TIMES * size) if size else confined.memory,
                examined,
                str(folder),
                size > _INLINE_BYTES,
                seconds=1.0 + size * 0.05e-6,
            )
        except ApiError as error:
            raise UnusableTokenizer(f"{file}: {error.message}") from None
    codec = TextCodec(folder)
    codec.trusted = trusted
    if not trusted:
        log.info("no known form of tokenizer: it works in confined processes", at=str(folder))
        if around is not None:
            codec.around = (around[0], around[1])
    return codec


def examined(folder: str, look: bool) -> tuple[Around, bool]:
    """Reads and tries a checkpoint's tokenizer, in a confined process; if `look`, whether it is
    harmless, too. Returns the tokens that it puts around a text, and whether it is known to be
    harmless.
    """
    try:
        codec = codec_of(folder)
        if codec.id_limit > MAX_ID:
            raise UnusableTokenizer(f"it gives a token the id {codec.id_limit - 1}")
        codec.encode("a b")
        return codec.around, look and _is_known(Path(folder))
    except UnusableTokenizer as error:
        raise invalid(str(error)) from None


def _is_known(folder: Path) -> bool:
    described = read_object(folder, TOKENIZER) or {}
    for part in _PARTS:
        if _longest(described.get(part)) > _MOST_DATA:
            raise UnusableTokenizer(f"{folder / TOKENIZER}: the {part} is too large")
    return is_harmless(described)


def is_harmless(described: dict[str, Any]) -> bool:
    """True if each step of a tokenizer.json is known to take time in proportion to the text."""
    model, added = described.get("model"), described.get("added_tokens") or []
    if not isinstance(model, dict) or not isinstance(added, list) or len(added) > _MOST_ADDED:
        return False
    # The greedy ones look at all parts of a word for each of its characters.
    ids = model.get("vocab")
    if model.get("type", "BPE") != "BPE" or not isinstance(ids, dict):
        return False
    texts = [token.get("content") for token in added if isinstance(token, dict)]
    if not all(isinstance(text, str) and len(text) <= _MOST_TEXT for text in texts):
        return False
    numbers = [*ids.values(), *(token.get("id") for token in added if isinstance(token, dict))]
    if not all(type(number) is int and 0 <= number < MAX_ID for number in numbers):
        return False
    return all(_is_linear(described.get(part), inner) for part, inner in _PARTS.items())


def _is_linear(part: Any, inner: str) -> bool:
    waiting, seen, growth = [part] if part is not None else [], 0, 1.0
    while waiting:
        step = waiting.pop()
        seen += 1
        if not isinstance(step, dict) or step.get("type") not in _LINEAR or seen > _MOST_STEPS:
            return False
        if step["type"] == "Sequence":
            steps = step.get(inner)
            if not isinstance(steps, list):
                return False
            waiting += steps
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and not isinstance(pattern.get("String"), str):
            if pattern.get("Regex") not in PATTERNS or step["type"] == "Replace":
                return False
        elif step["type"] == "Replace":
            old, new = (pattern or {}).get("String"), step.get("content")
            if not isinstance(old, str) or not old or not isinstance(new, str):
                return False
            growth *= max(
                1.0, len(new.encode(errors="replace")) / len(old.encode(errors="replace"))
            )
        if growth > _MOST_GROWTH or len(str(step.get("prepend", ""))) > _MOST_TEXT:
            return False
    return True


def _longest(value: Any) -> int:
    """Characters of the longest text in a value of JSON."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_longest, inner), default=0)
