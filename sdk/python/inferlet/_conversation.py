"""The model's chat format: messages into tokens, as `Context.system`, `user`, `cue` and so on add
them.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, TypeAlias

from inferlet.model import Model

Message: TypeAlias = dict[str, Any]  # `role`, `content`, and what else the template knows

_EXAMPLE: list[Message] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
]


class Conversation:
    """Messages of a context, rendered as they come.

    A chat template renders a whole conversation, and may render a part in another way when more
    follows: move the system message, or leave past thinking out. So the whole is rendered each
    time. Where it begins with the text that is there, the rest is added; where it does not, the
    context is cut back to where the two part.
    """

    def __init__(self, model: Model, arguments: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self._messages: list[Message] = []
        self._past: list[Message] = []  # turns that seem to precede, where other text does
        self.arguments = dict(arguments or {})  # of the template, next to the messages
        self._rendered = 0  # messages that are tokens already
        self._turn_start: int | None = None  # token at which the assistant's open turn starts
        self._text = ""  # the conversation's text so far
        # How long text and context were after each part. A cut never goes below the first.
        self._marks: list[tuple[int, int]] = []
        self.recomputed = 0  # tokens cut off since the template changed its mind about them
        self.unanswered = False  # a message is the last thing said, so the assistant is next

    @property
    def waiting(self) -> bool:
        """True if messages are not tokens yet."""
        return self._rendered < len(self._messages)

    def copy(self) -> Conversation:
        """An independent copy."""
        other = copy.copy(self)
        other._messages = self._messages[:]
        other._marks = self._marks[:]
        return other

    def add(self, message: Message, tokens: list[int]) -> None:
        """Adds a message; first the tokens since the last cue become the assistant's.

        Args:
            message: of the conversation.
            tokens: all of the context.
        """
        if self._turn_start is not None:
            generated = tokens[self._turn_start :]
            decode, stops = self._model.tokenizer.decode, self._model.stop_tokens
            self._text += decode(generated)
            self._marks.append((len(self._text), len(tokens)))
            if generated[-1:] and generated[-1] in stops:
                generated = generated[:-1]  # the program has ended the turn itself
            self._messages.append({"role": "assistant", "content": decode(generated)})
            self._turn_start = None
            self._rendered += 1
        self._messages.append(message)
        self.unanswered = True

    def render(self, *, cue: bool, tokens: list[int]) -> tuple[int, list[int]]:
        """Renders the messages that wait, and what starts the assistant's turn if `cue`.

        Args:
            cue: whether the assistant's turn starts now.
            tokens: all of the context.

        Returns:
            How many of the tokens stay, and those that follow them.

        Raises:
            ValueError: the template changes what was there before the conversation.
            PieError: the template refuses the messages.
        """
        if self._turn_start is not None and not self.waiting:
            return len(tokens), []  # cued already
        if not self._marks or self._marks[-1][1] != len(tokens):
            self._begin(len(tokens))
        text = self._apply(self._messages, cue)
        keep, new = self._continuation(text, tokens)
        self._text = text
        self._rendered = len(self._messages)
        self._marks.append((len(text), keep + len(new)))
        self.recomputed += len(tokens) - keep
        if cue:
            self._turn_start = keep + len(new)
            self.unanswered = False
        return keep, new

    def _begin(self, length: int) -> None:
        """Begins at a text that is no part of the conversation, as it would after any turns."""
        if length and not self._rendered:
            self._past = _EXAMPLE
        past = self._messages[: self._rendered]
        self._text = self._apply(past, False) if length else ""
        self._marks = [(len(self._text), length)]

    def _apply(self, messages: list[Message], cue: bool) -> str:
        apply = self._model.tokenizer.apply_chat_template
        return apply([*self._past, *messages], cue, **self.arguments)

    def _continuation(self, text: str, tokens: list[int]) -> tuple[int, list[int]]:
        """How many tokens stay for a text, and those that follow them."""
        shared = _shared(self._text, text)
        while self._marks and self._marks[-1][0] > shared:
            self._marks.pop()
        if not self._marks:
            raise ValueError(
                "the model's chat template renders what was there before this conversation in"
                " another way when messages follow: begin an empty context"
            )
        characters, keep = self._marks[-1]
        new = self._tokens_after(text, characters)
        same = _shared(tokens[keep:], new)
        return keep + same, new[same:]

    def _tokens_after(self, text: str, start: int) -> list[int]:
        """Tokens of a text from a character on, if possible as they are within the whole."""
        encode = self._model.tokenizer.encode
        whole, before = encode(text), encode(text[:start])
        if whole[: len(before)] == before:
            return whole[len(before) :]
        return encode(text[start:])


def _shared(one: Any, other: Any) -> int:
    """With how many characters or tokens two texts or lists begin alike."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return bisect_left(range(most), True, key=lambda n: one[: n + 1] != other[: n + 1])
