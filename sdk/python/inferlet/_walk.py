"""A generation's walk through its grammar."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Tokens

from inferlet.grammar import Matcher


class Walk:
    """A generation's place in its grammar.

    Attributes:
        matcher: at that place.
        waiting: tokens that the grammar forces there, which the matcher has consumed.
    """

    __slots__ = ("_forced", "_lost", "matcher", "waiting")

    def __init__(self, matcher: Matcher, *, forced: bool) -> None:
        """At the start; `forced` tokens are taken without the model."""
        self.matcher = matcher
        self._forced = forced
        self.waiting: deque[int] = deque()
        self._lost = False  # the matcher may have consumed a token that was not seen here

    @property
    def is_complete(self) -> bool:
        """True if the text may end here; never after a cancelled step."""
        return not self._lost and self.matcher.is_accepting

    def lose(self) -> None:
        """A step was cancelled: the server may choose, and advance the matcher."""
        self._lost = True

    def ask(self) -> list[int]:
        """Asks for forced tokens if none waits; those that were found. Raises RuntimeError: a step
        was cancelled before.
        """
        self._check_place()
        if self.waiting or not self._forced:
            return []
        tokens = self.matcher.forced()
        if tokens:
            self.matcher.advance(tokens)
            self.waiting.extend(tokens)
        return tokens

    def check(self, tokens: Tokens[int]) -> None:
        """Refuses tokens that the grammar does not allow. Raises ValueError: one is not allowed;
        RuntimeError: a step was cancelled before.
        """
        self._check_place()
        allowed = self.matcher.count_allowed(tokens)
        if allowed < len(tokens):
            raise ValueError(f"the grammar does not allow token {tokens[allowed]} here")

    def _check_place(self) -> None:
        if self._lost:
            raise RuntimeError(
                "a step of this generation was cancelled, so its place in the grammar is not known"
                " any more: begin a new generation"
            )
