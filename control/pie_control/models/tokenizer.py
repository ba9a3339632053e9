"""Text to tokens and back, and chat templates, of one model: here, and as jobs of a process."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pie_control.confined.process import uncharged
from pie_control.errors import ApiError, exceeded, invalid
from pie_control.models.chat_template import LONGEST_SECONDS, ChatTemplates, read_sources
from pie_control.models.control_tokens import breaker, drop_breaks
from pie_control.models.tokenizer_files import TOKENIZER, load_tokenizer, reading, special_texts
from pie_py.config.printable import printable
from pie_py.models.checkpoint_files import read_object

# Texts are encoded one at a time, so threads of the library's own are of no use. It warns in
# processes forked from this one unless this variable is set.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# What generation_config.json has that the SDKs' `Sampler` has by the same name.
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
Whole = tuple[NDArray[np.int32], int]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextCodec:
    """Tokenizer and chat templates of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder's files.

        Raises:
            UnusableTokenizer: if one lacks or is wrong; the text names it.
        """
        self.folder = folder
        # Whether its files are known to be harmless: else texts are handled in confined processes.
        self.trusted = True
        with reading(folder / TOKENIZER):
            settings = read_object(folder, "tokenizer_config.json") or {}
            self._tokenizer: Any = load_tokenizer(folder, settings)
            drop_breaks(self._tokenizer)
            self._has_types = _has_types(settings)
            self._special_texts = special_texts(folder, settings)
        with reading(f"{folder}: the chat template"):
            self._templates = ChatTemplates(
                read_sources(folder, settings), self._special_texts, broken=breaker(self._tokenizer)
            )
            defaults = read_object(folder, "generation_config.json") or {}
        self.generation_defaults = _defaults(defaults)
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self._ids = np.unique(np.fromiter(ids, np.int64))
        # The number that all tokens are below; there may be gaps.
        self.id_limit = int(self._ids[-1]) + 1 if len(self._ids) else 0
        self._bytes: dict[int, bytes] = {}  # of tokens that were asked for

    def no_tokens(self, size: int) -> list[int]:
        """Ids below `size` that no token has, as where a model's rows are padded."""
        found: list[int] = np.setdiff1d(np.arange(size), self._ids).tolist()
        return found

    @cached_property
    def end_token(self) -> int | None:
        """The token that the tokenizer itself names as a text's end."""
        text = self._special_texts.get("eos_token")
        found: int | None = None if text is None else self._tokenizer.token_to_id(text)
        return found

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """Tokens that the tokenizer itself puts before and behind every text."""
        text = self.encode("a")
        whole: list[int] = self._tokenizer.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(whole)) if whole[i : i + len(text)] == text), 0)
        return whole[:at], whole[at + len(text) :]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens in it are recognised, none is added."""
        return _encode(self._tokenizer, text)

    def encode_whole(self, texts: list[Any], most: int) -> list[Whole]:
        """Token ids of texts, or of pairs of them, with the tokens that the tokenizer puts around
        them, at most so many of each; and where a pair's second text begins, by its types, or -1.

        Raises:
            ApiError: `invalid-argument`: that leaves no room for a text.
        """
        pairs = [text if isinstance(text, str) else tuple(text) for text in texts]
        self._tokenizer.enable_truncation(most)
        try:
            found = _tried(self._tokenizer.encode_batch_fast, pairs, add_special_tokens=True)
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001  the library has no errors of its own
            raise invalid(f"{most} tokens: {printable(error)}") from None
        finally:
            self._tokenizer.no_truncation()
        whole = []
        for one in found:
            types = one.type_ids if self._has_types else ()
            whole.append((np.array(one.ids, np.int32), types.index(1) if 1 in types else -1))
        return whole

    def plain_encoder(self) -> Callable[[str], list[int]]:
        """An encoder of texts in which special tokens are nothing special."""
        tokenizer: Any = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = True

        def encode(text: str) -> list[int]:
            return _encode(tokenizer, text)

        return encode

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, special tokens included."""
        [text] = _tried(self._tokenizer.decode_batch, [tokens], skip_special_tokens=False)
        return str(text)

    @cached_property
    def special_tokens(self) -> list[tuple[str, int]]:
        """Special tokens, as their texts and ids, by id."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [(token.content, i) for i, token in sorted(added.items()) if token.special]

    @cached_property
    def vocabulary(self) -> list[bytes]:
        """The bytes of every token, by id; ids that no token has are empty."""
        return [self.bytes_of(token) for token in range(self.id_limit)]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none of an id that no token has."""
        if token >= self.id_limit:
            return b""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._read_bytes(token)
        return found

    def _read_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text: str | None = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._is_byte_level:
            return bytes(_BYTE_OF[c] for c in text if c in _BYTE_OF)
        if match := _BYTE_TOKEN.fullmatch(text):
            return bytes([int(match[1], 16)])
        return text.replace("\u2581", " ").encode()

    @cached_property
    def _added(self) -> dict[int, str]:
        return {i: t.content for i, t in self._tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = self._tokenizer.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    @property
    def has_chat_template(self) -> bool:
        """True if the folder has a chat template."""
        return bool(self._templates.sources)

    @property
    def chat_arguments(self) -> list[str]:
        """Arguments of the templates, see `ChatTemplates.arguments`."""
        return self._templates.arguments

    @property
    def chat_markers(self) -> list[str]:
        """The tokens that were added to the vocabulary, special or not, and stand in a template."""
        sources = "\n".join(self._templates.sources.values())
        added = self._tokenizer.get_added_tokens_decoder().values()
        return [token.content for token in added if token.content in sources]

    def apply_chat_template(
        self, request: str, add_generation_prompt: bool, seconds: float = LONGEST_SECONDS
    ) -> str:
        """Renders messages with a template, see `ChatTemplates.render`."""
        return self._templates.render(request, add_generation_prompt, seconds)


def _has_types(settings: dict[str, Any]) -> bool:
    """True if the second text of a pair has another type, as transformers' class would have it."""
    named = settings.get("model_input_names")
    if isinstance(named, list):
        return "token_type_ids" in named
    return settings.get("tokenizer_class") not in ("PreTrainedTokenizerFast", "TokenizersBackend")


def _defaults(config: dict[str, Any]) -> dict[str, float]:
    """The sampler's parameters that a generation_config.json recommends."""
    found = {name: config.get(name) for name in _DEFAULTS}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _encode(tokenizer: Any, text: str) -> list[int]:
    # The library holds the GIL while it encodes or decodes one text, however long, but not for a
    # list.
    [encoding] = _tried(tokenizer.encode_batch_fast, [text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _tried(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls the library, whose patterns give up by a panic, which is no `Exception`."""
    try:
        return call(*args, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        said = printable(error)
    raise exceeded(f"the tokenizer does not come to an end with this: {said}")


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character; this maps them back."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in printable)
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table


_BYTE_OF = _byte_of_character()


# Jobs of a confined process: long texts.
@lru_cache(maxsize=8)
def codec_of(folder: str) -> TextCodec:
    """The tokenizer of a folder."""
    return TextCodec(Path(folder))


def encode(folder: str, text: str) -> bytes:
    """Token ids of a text, as bytes of uint32."""
    return np.array(_loaded(folder).encode(text), np.uint32).tobytes()


def encode_whole(folder: str, texts: list[Any], most: int) -> list[tuple[bytes, int]]:
    """As `TextCodec.encode_whole`, ids as bytes of int32."""
    return [(ids.tobytes(), at) for ids, at in _loaded(folder).encode_whole(texts, most)]


def decode(folder: str, tokens: bytes) -> str:
    """Text of token ids, given as bytes of uint32."""
    return _loaded(folder).decode(np.frombuffer(tokens, np.uint32).tolist())


def render(folder: str, request: str, add_generation_prompt: bool) -> str:
    """A chat template's text, see `ChatTemplates.render`."""
    return _loaded(folder).apply_chat_template(request, add_generation_prompt)


def _loaded(folder: str) -> TextCodec:
    with uncharged():
        return codec_of(folder)


_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TokenText:
    """Turns a stream of tokens into a stream of text: whole characters only, up to the first of
    some strings.

    The text is that of the tokens' bytes. Bytes of no character are U+FFFD; those of a character
    that is not whole wait. So does text that may be the start of a string that ends it.

    Attributes:
        ends: the strings.
        found: number of the string that was found; how many there are if none was.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        before: Sequence[int],
        ends: Sequence[str],
        hidden: Sequence[int],
    ) -> None:
        """Has no text yet. Tokens `before` the first one may have begun its character; the spans of
        `hidden` tokens have no text. The strings that end the text do not belong to it.
        """
        self._bytes_of = bytes_of
        self.ends = ends
        starts, counts = hidden[::2], hidden[1::2]
        self._hidden = [
            range(start, start + count) for start, count in zip(starts, counts, strict=True)
        ]
        self._bytes = self._bytes_if_shown if self._hidden else bytes_of
        self.found = len(ends)
        self._held = ""  # may be the start of one of `ends`
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(b"".join(map(bytes_of, before)))
        self._begun = bool(self._decoder.getstate()[0])  # a character, by the tokens before

    @property
    def is_ended(self) -> bool:
        """True if it was ended by one of the strings."""
        return self.found < len(self.ends)

    def feed(self, tokens: Sequence[int]) -> tuple[str, int]:
        """The text that tokens complete, and how many of them it took: all, unless the text ends.

        Once it has ended, nothing more can be fed.
        """
        if not self.ends:
            return self._decode(b"".join(map(self._bytes, tokens))), len(tokens)
        parts = []
        for count, token in enumerate(tokens, 1):
            parts.append(self._pass(self._decode(self._bytes(token))))
            if self.is_ended:
                return "".join(parts), count
        return "".join(parts), len(tokens)

    def finish(self) -> str:
        """The text that waited, when nothing more comes."""
        text = self._decode(b"", final=True)
        if self.ends:
            text = self._pass(text)
        text, self._held = text + self._held, ""
        return text

    def _bytes_if_shown(self, token: int) -> bytes:
        if any(token in span for span in self._hidden):
            return b""
        return self._bytes_of(token)

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if self._begun and text:
            self._begun = False
            return text.removeprefix(_BROKEN)  # broken before, so not of this text
        return text

    def _pass(self, text: str) -> str:
        """The text that is no part of a string that ends it, and none after that."""
        text = self._held + text
        places = ((text.find(end), -len(end), number) for number, end in enumerate(self.ends))
        found = [place for place in places if place[0] >= 0]
        if found:
            place, _, self.found = min(found)
            self._held = ""
            return text[:place]
        keep = max(_overlap(text, end) for end in self.ends)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, end: str) -> int:
    """Length of the longest end of a text that begins a string."""
    lengths = range(min(len(text), len(end) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(end[:length])), 0)
