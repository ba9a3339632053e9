"""The prompts of `/v1/completions`: texts and lists of token ids."""

from __future__ import annotations

from typing import TypeAlias

from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.problems import Problem
from pie_gateway.schemas.completions import MAX_PROMPTS

Prompt: TypeAlias = str | list[int]


def prompts_of(given: str | list[str | int | list[int]]) -> list[Prompt]:
    """The prompts of a request.

    Raises:
        Problem: 400 if they are of different kinds, empty, or too many.
    """
    if isinstance(given, str):
        return [given]
    tokens = [each for each in given if isinstance(each, int)]
    if len(tokens) == len(given):
        return [tokens]
    found: list[Prompt] = [each for each in given if not isinstance(each, int)]
    if len(found) != len(given) or len({type(each) for each in found}) > 1:
        raise _wrong("texts, token ids and lists of token ids cannot be mixed")
    if not all(isinstance(each, str) or each for each in found):
        raise _wrong("a list of token ids is empty")
    if len(found) > MAX_PROMPTS:
        raise _wrong(f"{len(found)} prompts; {MAX_PROMPTS} at most")
    return found


def text_of(prompt: Prompt, words: Vocabulary) -> str:
    """A prompt as text."""
    if isinstance(prompt, str):
        return prompt
    return b"".join(words.bytes_of(token) for token in prompt).decode(errors="replace")


def _wrong(why: str) -> Problem:
    return Problem(400, f"`prompt`: {why}", param="prompt", code="invalid_value")
