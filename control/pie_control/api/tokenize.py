"""Trait `tokenize`: text to tokens and back. Answered by the control layer, without a queue.

Long texts are handled in a confined process while the guest stays suspended, so that no other
instance waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import trio

from pie_control.api.binder import check_ids
from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError, check_values, exceeded
from pie_control.fairness import Owner
from pie_control.instances.instance import Instance
from pie_control.instances.turns import SlowCalls
from pie_control.models.chat_template import INLINE_SECONDS
from pie_control.models.served import ServedModels
from pie_control.models.tokenizer import TextCodec, decode, encode, render

INLINE_CHARACTERS = 8192  # about a millisecond of tokenizing
INLINE_TOKENS = 4096
MAX_CHARACTERS = 1 << 20
MAX_TOKENS = 1 << 17  # more than any context has; Wasmtime takes 5 ms for so many
# Functions that may suspend the guest.
SLOW_CALLS = ("tokenize", "detokenize", "get-vocabs", "apply-chat-template")


class TokenizeCalls:
    """Text to tokens and back, with the tokenizers of the served models."""

    def __init__(self, models: ServedModels, answers: SlowCalls, pool: ConfinedPool) -> None:
        self._models = models
        self._answers = answers
        self._pool = pool

    def tokenize(self, instance: Instance, model: str, text: str) -> Any:
        """Token ids of a text."""
        codec = self._codec(instance, model)
        if len(text) > MAX_CHARACTERS:
            raise exceeded(f"a text of {len(text)} characters; {MAX_CHARACTERS} at most a call")
        if len(text) <= INLINE_CHARACTERS and codec.trusted:
            return codec.encode(text)

        async def work() -> list[int]:
            tokens = await self._confined(instance, "a text", encode, codec, text)
            ids: list[int] = np.frombuffer(tokens, np.uint32).tolist()
            return ids

        return self._answers.start(instance, work)

    def detokenize(self, instance: Instance, model: str, tokens: list[int]) -> Any:
        """Text of token ids."""
        codec = self._codec(instance, model)
        if len(tokens) > MAX_TOKENS:
            raise exceeded(f"{len(tokens)} tokens; {MAX_TOKENS} at most a call")
        service = self._models.services.get(model)
        padded = 0 if service is None else service.description.vocab_size
        check_ids(tokens, max(codec.id_limit, padded))
        if len(tokens) <= INLINE_TOKENS and codec.trusted:
            return codec.decode(tokens)
        packed = np.array(tokens, np.uint32).tobytes()
        return self._answers.start(
            instance, lambda: self._confined(instance, "a text", decode, codec, packed)
        )

    def get_vocabs(self, instance: Instance, model: str) -> Any:
        """The bytes of every token, by id."""
        codec = self._codec(instance, model)
        return self._answers.start(
            instance, lambda: trio.to_thread.run_sync(lambda: codec.vocabulary)
        )

    def special_tokens(self, instance: Instance, model: str) -> list[tuple[str, int]]:
        """Special tokens, as their texts and ids."""
        return self._codec(instance, model).special_tokens

    def apply_chat_template(
        self, instance: Instance, model: str, messages: str, add_generation_prompt: bool
    ) -> Any:
        """Renders messages with the model's chat template."""
        codec = self._codec(instance, model)
        if len(messages) > MAX_CHARACTERS:
            raise exceeded(
                f"chat messages of {len(messages)} characters; {MAX_CHARACTERS} at most a call"
            )
        if len(messages) <= INLINE_CHARACTERS:
            try:
                return codec.apply_chat_template(messages, add_generation_prompt, INLINE_SECONDS)
            except ApiError as error:
                if error.code != "limit-exceeded":
                    raise
        check_values(messages, "chat messages", "invalid-argument")
        return self._answers.start(
            instance,
            lambda: self._confined(
                instance, "the chat", render, codec, messages, add_generation_prompt
            ),
        )

    def _codec(self, instance: Instance, model: str) -> TextCodec:
        """The tokenizer of a model that has the trait, also while its worker is away.

        Raises:
            ApiError: `unknown-model`, `unsupported`.
        """
        service = self._models.services.get(model)
        if service is not None:
            service.check_trait("tokenize")
        return self._models.codec(model)

    async def _confined(
        self, instance: Instance, what: str, job: Callable[..., Any], codec: TextCodec, *args: Any
    ) -> Any:
        """Has a job of the tokenizer done with a model's tokenizer."""
        owner = Owner(instance.user, instance.id)
        return await self._pool.call(owner, what, job, str(codec.folder), *args)
