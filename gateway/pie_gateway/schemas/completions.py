"""`/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pie_gateway.schemas.sampling import (
    FINGERPRINT,
    MAX_TOP_LOGPROBS,
    Choices,
    PromptLogprobs,
    SamplingRequest,
    TokenId,
    Usage,
)


class CompletionRequest(SamplingRequest, kw_only=True):
    """A request for the text that follows prompts."""

    # A text, texts, a list of token ids, or several of those.
    prompt: str | Annotated[list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1)]
    best_of: Choices | None = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    suffix: str | None = None  # what follows the text


class CompletionLogprobs(msgspec.Struct):
    """The tokens of a choice: their texts, where these begin, and how likely they were."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]

    def followed_by(self, more: CompletionLogprobs) -> CompletionLogprobs:
        """These and those of the tokens that follow."""
        return CompletionLogprobs(
            self.text_offset + more.text_offset,
            self.token_logprobs + more.token_logprobs,
            self.tokens + more.tokens,
            self.top_logprobs + more.top_logprobs,
        )


class CompletionChoice(msgspec.Struct):
    """One text, or a part of it."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionAnswer(msgspec.Struct):
    """Texts that follow the prompts, or parts of them."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str = FINGERPRINT
    usage: Usage | UnsetType = UNSET
