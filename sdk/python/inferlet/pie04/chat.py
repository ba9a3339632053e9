"""Chat as in Pie 0.4: the decoder leaves thoughts out, which `reasoning` has."""

from __future__ import annotations

from collections.abc import Sequence

from inferlet import chat
from inferlet.chat import AnyEvent, Event, assistant, cue, seal, stop_tokens, system, user
from inferlet.model import Model
from inferlet.pie04 import reasoning

__all__ = [
    "AnyEvent",
    "Decoder",
    "Event",
    "assistant",
    "cue",
    "seal",
    "stop_tokens",
    "system",
    "user",
]


class Decoder(chat.Decoder):
    """Turns generated tokens into events, without those of thoughts."""

    __slots__ = ("_thoughts",)

    def __init__(self, model: Model) -> None:
        self._thoughts = reasoning.Decoder(model)
        super().__init__(model)

    def feed(self, tokens: Sequence[int]) -> AnyEvent:
        """As `inferlet.chat.Decoder.feed`."""
        shown = [token for token in tokens if not self._is_thought(token)]
        return super().feed(shown) if shown or not tokens else Event.Idle()

    def _is_thought(self, token: int) -> bool:
        before = self._thoughts.inside
        self._thoughts.feed([token])
        return before or self._thoughts.inside

    def reset(self) -> None:
        """As `inferlet.chat.Decoder.reset`."""
        self._thoughts.reset()
        super().reset()
