"""The model's chat format: messages into tokens, and generated tokens into events.

`Context.system`, `user`, `assistant`, `cue` and `seal` use this; the functions here give the same
tokens to programs that keep their own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inferlet._stream import TextDecoder
from inferlet.model import Model

_MARK = "\u2400pie-py\u2400"  # stands for the generated text when a template is rendered
_EXAMPLE = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]


class Conversation:
    """Messages of a context, rendered as they come.

    A chat template renders a whole conversation, and may treat its parts differently by what comes
    before and after. So every new part is rendered together with what precedes it, and cut off.
    """

    __slots__ = (
        "_messages",
        "_model",
        "_rendered",
        "_sealed",
        "_turn_start",
        "_unclosed",
        "unanswered",
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._messages: list[dict[str, str]] = []
        self._rendered = 0  # messages that are tokens already
        self._turn_start: int | None = None  # token at which the assistant's open turn starts
        self._sealed = False
        # What ends the last turn is missing: its tokens are the assistant's own.
        self._unclosed = False
        self.unanswered = False  # a message is the last thing said, so the assistant is next

    @property
    def waiting(self) -> bool:
        """Whether messages are not tokens yet."""
        return self._rendered < len(self._messages)

    def copy(self) -> Conversation:
        """An independent copy."""
        other = Conversation(self._model)
        other._messages = self._messages[:]
        other._rendered = self._rendered
        other._turn_start = self._turn_start
        other._sealed = self._sealed
        other._unclosed = self._unclosed
        other.unanswered = self.unanswered
        return other

    def add(self, role: str, content: str, tokens: list[int], pending: list[int]) -> None:
        """Adds a message; first the tokens since the last cue become the assistant's."""
        if self._turn_start is not None:
            generated = (tokens + pending)[self._turn_start :]
            text = self._model.tokenizer.decode(generated)
            self._messages.append({"role": "assistant", "content": text})
            self._turn_start = None
            self._unclosed = True
            self._rendered += 1
        self._messages.append({"role": role, "content": content})
        self.unanswered = True

    def render(self, *, cue: bool, started: int) -> list[int]:
        """Tokens of the messages that wait, and of what starts the assistant's turn if `cue`.

        Args:
            cue: whether the assistant's turn starts now.
            started: tokens that are in the context already.
        """
        old = self._messages[: self._rendered]
        new = self._messages[self._rendered :]
        if self._turn_start is not None and not new:
            return []  # cued already
        text = self._text(old, new, cue, started)
        self._rendered = len(self._messages)
        self._unclosed = False
        tokens = self._model.tokenizer.encode(text)
        if self._sealed and tokens[:1] == self._model.stop_tokens[:1]:
            tokens = tokens[1:]
        self._sealed = False
        if cue:
            self._turn_start = started + len(tokens)
            self.unanswered = False
        return tokens

    def seal(self) -> None:
        """Notes that a stop token ends the assistant's turn."""
        self._sealed = True

    def _text(
        self, old: list[dict[str, str]], new: list[dict[str, str]], cue: bool, started: int
    ) -> str:
        apply = self._model.tokenizer.apply_chat_template
        if not old and not started:
            return apply(new, cue)
        if old and self._unclosed:
            marked = [*old[:-1], {"role": "assistant", "content": _MARK}]
            return apply([*marked, *new], cue).rpartition(_MARK)[2]
        return _difference(self._model, old or _EXAMPLE, new, cue)


def _difference(
    model: Model, old: list[dict[str, str]], new: list[dict[str, str]], cue: bool
) -> str:
    """What messages add to the text of those before them."""
    apply = model.tokenizer.apply_chat_template
    before = apply(old, False)
    after = apply([*old, *new], cue)
    if not after.startswith(before):
        raise ValueError(
            "the model's chat template renders earlier messages in another way when others"
            " follow: fill the whole conversation at once, with"
            " `ctx.fill(model.tokenizer.apply_chat_template(...))`"
        )
    return after[len(before) :]


def _turn(model: Model, role: str, message: str, old: list[dict[str, str]]) -> list[int]:
    text = _difference(model, old, [{"role": role, "content": message}], False)
    return model.tokenizer.encode(text)


def system(model: Model, message: str) -> list[int]:
    """Tokens of a conversation that starts with a system message."""
    text = model.tokenizer.apply_chat_template([{"role": "system", "content": message}])
    return model.tokenizer.encode(text)


def user(model: Model, message: str) -> list[int]:
    """Tokens of a user's turn in the middle of a conversation."""
    return _turn(model, "user", message, _EXAMPLE)


def assistant(model: Model, message: str) -> list[int]:
    """Tokens of an assistant's turn in the middle of a conversation."""
    return _turn(model, "assistant", message, _EXAMPLE[:1])


def cue(model: Model) -> list[int]:
    """Tokens that start the assistant's turn."""
    return model.tokenizer.encode(_difference(model, _EXAMPLE[:1], [], True))


def seal(model: Model) -> list[int]:
    """The token that ends the assistant's turn."""
    return model.stop_tokens[:1]


def stop_tokens(model: Model) -> list[int]:
    """Tokens that end the assistant's turn."""
    return list(model.stop_tokens)


class Event:
    """What a batch of generated tokens means. Match it with `match`."""

    @dataclass(frozen=True, slots=True)
    class Idle:
        """Nothing to show yet."""

    @dataclass(frozen=True, slots=True)
    class Delta:
        """New text, never empty."""

        text: str

    @dataclass(frozen=True, slots=True)
    class Done:
        """The turn has ended; `text` is all of it."""

        text: str

    @dataclass(frozen=True, slots=True)
    class Interrupt:
        """A special token that is no text."""

        token: int


AnyEvent: TypeAlias = Event.Idle | Event.Delta | Event.Done | Event.Interrupt


class Decoder:
    """Turns generated tokens into events. Feed every batch in order.

    A generator swallows the stop token that ends it, so the end of the turn shows as an empty
    batch.
    """

    __slots__ = ("_decoder", "_model", "_special", "_stops", "_text")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._stops = frozenset(model.stop_tokens)
        self._special = frozenset(model.tokenizer.special_tokens()[0])
        self.reset()

    def feed(self, tokens: Sequence[int]) -> AnyEvent:
        """The event that these tokens make; the last one, if a special token is among them."""
        new = ""
        interrupt: int | None = None
        done = not tokens
        for token in tokens:
            if token in self._stops:
                done = True
                break
            if token in self._special:
                interrupt = token
            else:
                new += self._decoder.feed(token)
        self._text += new
        if done:
            self._text += self._decoder.finish()
            return Event.Done(self._text)
        if interrupt is not None:
            return Event.Interrupt(interrupt)
        return Event.Delta(new) if new else Event.Idle()

    def reset(self) -> None:
        """Forgets all that was fed."""
        self._decoder = TextDecoder(self._model.tokenizer.decode)
        self._text = ""
