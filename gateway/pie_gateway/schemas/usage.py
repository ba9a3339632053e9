"""What answers tell beside their text: the number of tokens, and what has made them."""

from __future__ import annotations

import msgspec

from pie_py import __version__

FINGERPRINT = f"pie_py-{__version__}"  # `system_fingerprint`: another one may choose other tokens


class PromptDetails(msgspec.Struct):
    """Tokens of the prompts that need not be computed."""

    cached_tokens: int  # the prefix cache had them


class Usage(msgspec.Struct):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage(prompt: int, completion: int, cached: int) -> Usage:
    """Of all prompts and all their choices."""
    return Usage(prompt, completion, prompt + completion, PromptDetails(cached))
