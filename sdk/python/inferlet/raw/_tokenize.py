"""Interface `tokenize`: texts to tokens and back."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import tokenize as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32s


def tokenize(model: str, text: str) -> list[int]:
    """Token ids of a text; special tokens written in the text are recognised, none is added.
    Errors: `unknown-model`, `limit-exceeded` (text too long).
    """
    try:
        answer: list[int] = interface.tokenize(as_text(model), as_text(text))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def detokenize(model: str, tokens: list[int]) -> str:
    """Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
    Errors: `unknown-model`, `invalid-argument`.
    """
    try:
        answer: str = interface.detokenize(as_text(model), as_u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def get_vocabs(model: str) -> list[bytes]:
    """The bytes of every token, by id. Large: ask once.
    Errors: `unknown-model`.
    """
    try:
        answer: list[bytes] = interface.get_vocabs(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def special_tokens(model: str) -> list[tuple[str, int]]:
    """Special tokens, as their texts and ids.
    Errors: `unknown-model`.
    """
    try:
        answer: list[tuple[str, int]] = interface.special_tokens(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def apply_chat_template(model: str, messages: str, add_generation_prompt: bool) -> str:
    """Renders messages, a JSON list of `{"role": ..., "content": ...}`, with the model's chat template.
    `add-generation-prompt` appends what starts the assistant's turn.
    Errors: `unknown-model`, `unsupported` (the model has no template), `invalid-argument`.
    """
    try:
        answer: str = interface.apply_chat_template(
            as_text(model), as_text(messages), bool(add_generation_prompt)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer
