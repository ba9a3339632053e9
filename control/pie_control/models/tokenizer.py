"""Text to tokens and back, and chat templates, for one model. Runs in the control process."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer

from pie_control.errors import ApiError

# Texts are encoded one at a time, so threads of the library's own are of no use. It warns in
# processes forked from this one unless this variable is set.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# What a template raises that is given other messages than it was written for.
_SENSELESS_MESSAGES = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    jinja2.TemplateError,
)


class TextCodec:
    """Tokenizer and chat template of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        """Loads `tokenizer.json`, and the chat template if the folder has one."""
        self._folder = folder
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.id_limit: int = max(vocabulary.values()) + 1  # ids may have gaps

    @cached_property
    def first_token(self) -> int | None:
        """The token that the tokenizer itself puts before every text, if it does so."""
        bare: list[int] = self._tokenizer.encode("", add_special_tokens=True).ids
        return bare[0] if bare else None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens in it are recognised, none is added."""
        return _encode(self._tokenizer, text)

    def plain_encoder(self) -> Callable[[str], list[int]]:
        """What makes token ids of texts in which special tokens are nothing special."""
        tokenizer: Any = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = True

        def encode(text: str) -> list[int]:
            return _encode(tokenizer, text)

        return encode

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, special tokens included."""
        [text] = self._tokenizer.decode_batch([tokens], skip_special_tokens=False)
        return str(text)

    @cached_property
    def special_tokens(self) -> list[tuple[str, int]]:
        """Special tokens, as their texts and ids, by id."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [(token.content, i) for i, token in sorted(added.items()) if token.special]

    @cached_property
    def vocabulary(self) -> list[bytes]:
        """The bytes of every token, by id; ids that no token has are empty."""
        added = {i: t.content for i, t in self._tokenizer.get_added_tokens_decoder().items()}
        byte_level = '"ByteLevel"' in json.dumps(
            json.loads(self._tokenizer.to_str()).get("decoder") or {}
        )
        table: list[bytes] = [b""] * self.id_limit
        for token, i in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if i in added:
                table[i] = added[i].encode()
            elif byte_level:
                table[i] = bytes(_BYTE_OF[c] for c in token if c in _BYTE_OF)
            elif match := _BYTE_TOKEN.fullmatch(token):
                table[i] = bytes([int(match[1], 16)])
            else:
                table[i] = token.replace("\u2581", " ").encode()
        return table

    @cached_property
    def _template(self) -> jinja2.Template | None:
        source = self._template_source
        if source is None:
            return None
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = lambda value, **options: json.dumps(
            value, ensure_ascii=False, **options
        )
        return environment.from_string(source)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a chat template."""
        return self._template_source is not None

    def apply_chat_template(self, messages: str, add_generation_prompt: bool) -> str:
        """Renders a JSON list of messages.

        Raises:
            ApiError: `unsupported` without a template, `invalid-argument` for bad messages.
        """
        if self._template is None:
            raise ApiError("unsupported", "the model has no chat template; fill plain text instead")
        try:
            parsed = json.loads(messages)
            if not isinstance(parsed, list) or not all(isinstance(m, dict) for m in parsed):
                raise ValueError("a list of objects is wanted")
            text = self._template.render(
                messages=parsed,
                add_generation_prompt=add_generation_prompt,
                **self._template_tokens,
            )
            text.encode()  # JSON can name halves of characters, which no text has
            return text
        except RecursionError:
            raise ApiError("invalid-argument", "chat messages: nested too deep") from None
        except _SENSELESS_MESSAGES as error:
            raise ApiError("invalid-argument", f"chat messages: {error}") from None

    @cached_property
    def _template_source(self) -> str | None:
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = self._settings.get("chat_template")
        if isinstance(template, list):  # named templates: the default one
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default")
        return template if isinstance(template, str) else None

    @cached_property
    def _settings(self) -> dict[str, Any]:
        file = self._folder / "tokenizer_config.json"
        if not file.is_file():
            return {}
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return settings

    @cached_property
    def _template_tokens(self) -> dict[str, str]:
        tokens = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = self._settings.get(name)
            if isinstance(token, dict):
                token = token.get("content")
            tokens[name] = token or ""
        return tokens


def _encode(tokenizer: Any, text: str) -> list[int]:
    # The library holds the GIL while it encodes or decodes one text, however long, but not for a
    # list.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character; this maps them back."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in printable)
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table


_BYTE_OF = _byte_of_character()
