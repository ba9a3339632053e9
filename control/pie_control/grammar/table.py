"""The grammars and matchers of one instance, by handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pie_control.errors import ApiError

if TYPE_CHECKING:
    from pie_control.grammar.matcher import Matcher
    from pie_control.grammar.service import Grammar


class GrammarTable:
    """Handles of an instance. They are never used twice."""

    def __init__(self, max_grammars: int, max_matchers: int) -> None:
        self._max_grammars = max_grammars
        self._max_matchers = max_matchers
        self._grammars: dict[int, Grammar] = {}
        self._matchers: dict[int, Matcher] = {}
        self._next = 1

    def check_room(self) -> None:
        """Raises `limit-exceeded` if there are as many grammars as there may be."""
        if len(self._grammars) >= self._max_grammars:
            raise ApiError(
                "limit-exceeded", f"{self._max_grammars} grammars are held; release one first"
            )

    def check_matcher_room(self) -> None:
        """Raises `limit-exceeded` if there are as many matchers as there may be."""
        if len(self._matchers) >= self._max_matchers:
            raise ApiError(
                "limit-exceeded", f"{self._max_matchers} matchers are open; destroy one first"
            )

    def add(self, grammar: Grammar) -> int:
        """Holds a grammar and returns its handle."""
        self._grammars[self._next] = grammar
        self._next += 1
        return self._next - 1

    def add_matcher(self, matcher: Matcher) -> int:
        """Holds a matcher and returns its handle."""
        self._matchers[self._next] = matcher
        self._next += 1
        return self._next - 1

    def grammar(self, handle: int) -> Grammar:
        """The grammar behind a handle.

        Raises:
            ApiError: `invalid-handle`.
        """
        try:
            return self._grammars[handle]
        except KeyError:
            raise ApiError(
                "invalid-handle", f"{handle} is no grammar of this instance (released already?)"
            ) from None

    def matcher(self, handle: int) -> Matcher:
        """The matcher behind a handle.

        Raises:
            ApiError: `invalid-handle`.
        """
        try:
            return self._matchers[handle]
        except KeyError:
            raise ApiError(
                "invalid-handle", f"{handle} is no matcher of this instance (destroyed already?)"
            ) from None

    def remove(self, handle: int) -> None:
        """Lets a grammar go. Raises ApiError `invalid-handle`."""
        self.grammar(handle)
        del self._grammars[handle]

    def remove_matcher(self, handle: int) -> None:
        """Lets a matcher go. Raises ApiError `invalid-handle`."""
        self.matcher(handle)
        del self._matchers[handle]

    def close(self) -> None:
        """Lets everything go."""
        self._grammars.clear()
        self._matchers.clear()
