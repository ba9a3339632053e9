"""Control tokens that a stranger writes: text, and nothing else.

A chat template puts control tokens between the messages, as text; the tokenizer then finds them
wherever they stand. Users who write `<|system|>` would so end their message and begin another. A
code point that no text has breaks what they have written; the tokenizer looks for control tokens
first and drops that code point then, so what is left are the tokens of the plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tokenizers import normalizers

_BREAK = "\ufdd0"  # a noncharacter; dropped by the tokenizer's normalizer
# Stays, for the few control tokens that a tokenizer looks for after its normalizer.
_LASTING_BREAK = "\ufdd1"

# Whose words they are in messages of other roles, the program answers for.
_TRUSTED_ROLES = frozenset({"system", "developer", "assistant"})


def drop_breaks(tokenizer: Any) -> None:
    """Has a tokenizer drop what `breaker` puts in."""
    drop = normalizers.Replace(_BREAK, "")
    own = tokenizer.normalizer
    tokenizer.normalizer = drop if own is None else normalizers.Sequence([drop, own])


def breaker(tokenizer: Any) -> Callable[[str], str]:
    """A function that breaks the control tokens in a text, which stays as it is without one."""
    breaks = {
        token.content: _LASTING_BREAK if token.normalized else _BREAK
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and len(token.content) > 1
    }
    if not breaks:
        return lambda text: text
    longest_first = sorted(breaks, key=len, reverse=True)
    # The first character of each. The others are looked at again: they may begin another one.
    pattern = re.compile(rf"(?=({'|'.join(map(re.escape, longest_first))})).", re.DOTALL)
    return lambda text: pattern.sub(lambda match: match[0] + breaks[match[1]], text)


def without_control_tokens(message: dict[str, Any], broken: Callable[[str], str]) -> dict[str, Any]:
    """A message of a chat whose sender's words make no control tokens."""
    if message.get("role") in _TRUSTED_ROLES:
        return message
    return {
        key: value if key == "role" else _in_all_texts(value, broken)
        for key, value in message.items()
    }


def _in_all_texts(value: Any, broken: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return broken(value)
    if isinstance(value, list):
        return [_in_all_texts(one, broken) for one in value]
    if isinstance(value, dict):
        return {key: _in_all_texts(one, broken) for key, one in value.items()}
    return value
