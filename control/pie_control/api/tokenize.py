"""Trait `tokenize`: text to tokens and back. Answered by the control layer, without a queue.

Long texts are handled in a thread while the guest stays suspended, so that nobody else waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from pie_control.api.binder import implement
from pie_control.api.guest_json import check_values
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance, State
from pie_control.models.tokenizer import TextCodec
from pie_control.wasm import (
    SUSPENDED,
)

INLINE_CHARACTERS = 8192  # about a millisecond of tokenizing
INLINE_TOKENS = 4096
MAX_CHARACTERS = 16 << 20


def _codec(instance: Instance, model: str) -> TextCodec:
    """The tokenizer of a model that has the trait, also while its worker is away.

    Raises:
        ApiError: `unknown-model`, `unsupported`.
    """
    service = instance.host.services.get(model)
    if service is not None:
        service.check_trait("tokenize")
    return instance.host.codec(model)


def tokenize(instance: Instance, model: str, text: str) -> Any:
    """Token ids of a text."""
    codec = _codec(instance, model)
    if len(text) > MAX_CHARACTERS:
        raise ApiError(
            "limit-exceeded", f"a text of {len(text)} characters; {MAX_CHARACTERS} at most a call"
        )
    if len(text) <= INLINE_CHARACTERS:
        return codec.encode(text)
    return _in_thread(instance, lambda: codec.encode(text))


def detokenize(instance: Instance, model: str, tokens: list[int]) -> Any:
    """Text of token ids."""
    codec = _codec(instance, model)
    if tokens and max(tokens) >= codec.id_limit:
        raise ApiError(
            "invalid-argument",
            f"token {max(tokens)} is outside the vocabulary (0 to {codec.id_limit - 1})",
        )
    if len(tokens) <= INLINE_TOKENS:
        return codec.decode(tokens)
    return _in_thread(instance, lambda: codec.decode(tokens))


def get_vocabs(instance: Instance, model: str) -> Any:
    """The bytes of every token, by id."""
    codec = _codec(instance, model)
    return _in_thread(instance, lambda: codec.vocabulary)


def special_tokens(instance: Instance, model: str) -> list[tuple[str, int]]:
    """Special tokens, as their texts and ids."""
    return _codec(instance, model).special_tokens


def apply_chat_template(
    instance: Instance, model: str, messages: str, add_generation_prompt: bool
) -> Any:
    """Renders messages with the model's chat template."""
    codec = _codec(instance, model)
    if len(messages) <= INLINE_CHARACTERS:
        return codec.apply_chat_template(messages, add_generation_prompt)
    check_values(messages, "chat messages", "invalid-argument")
    return _in_thread(instance, lambda: codec.apply_chat_template(messages, add_generation_prompt))


def _in_thread(instance: Instance, work: Callable[[], Any]) -> Any:
    """Suspends the guest while the work is done in a thread."""

    async def run() -> None:
        try:
            answer: Any = await trio.to_thread.run_sync(work)
        except ApiError as error:
            answer = error
        except Exception as error:
            answer = ApiError("internal", f"{type(error).__name__}: {error}")
        if instance.state is State.RUNNING:
            instance.host.executor.answer(instance, answer)

    instance.host.lifecycle.start_soon(run)
    return SUSPENDED


FUNCTIONS = implement(
    "tokenize",
    tokenize,
    detokenize,
    get_vocabs,
    special_tokens,
    apply_chat_template,
    suspends=(tokenize, detokenize, get_vocabs, apply_chat_template),
)
