"""Which tokens a sample may choose, possibly not known yet."""

from __future__ import annotations

from collections.abc import Callable

from pie_py.wire.plan import Uint32


class TokenMask:
    """Words of 32 tokens each: bit `t % 32` of word `t // 32` allows token `t`.

    A thread may compute the words while the model runs; samples that need them are held back until
    then. `want` says that they are missed, and only then is there a notification.
    """

    __slots__ = ("_notify", "_wanted", "error", "words")

    def __init__(
        self, words: Uint32 | None = None, notify: Callable[[], None] | None = None
    ) -> None:
        """Takes the words; or, if a thread is to `finish` them, what that thread then calls."""
        self.words = words
        self.error: str | None = None  # why the words allow nothing
        self._notify = notify
        self._wanted = False

    def want(self) -> bool:
        """Whether the words are there; if not, there will be a notification."""
        if self.words is not None:
            return True
        self._wanted = (
            True  # before the second look: the thread sets the words, then looks for this
        )
        return self.words is not None

    def finish(self, words: Uint32, error: str | None = None) -> None:
        """Sets the words, once; called by a thread."""
        self.error = error
        self.words = words
        if self._wanted and self._notify is not None:
            self._notify()
