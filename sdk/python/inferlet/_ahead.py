"""The step of a generation that the server is given before its token is known.

A step runs one token and chooses the next. The server can begin it at once, because its own sampler
knows the token before the inferlet does. So the model does not wait for the inferlet.

The sequence does not show the step before its token has come: it stays as it would be without. Then
the program either goes on with that token, and the step is taken over (`confirm`), or does
something else, and the step is undone (`retract`).

    (no step) --queue--> ahead --arrived--> ahead, token known --confirm--> (no step), part of the
        sequence; `retract` leads back to (no step) from both, and sets `undone`
"""

from __future__ import annotations

from contextlib import suppress

from inferlet import _bindings, raw
from inferlet._sequence import Sequence
from inferlet.errors import PieError

# No room. A program that does not look ahead would not have asked for it, so it is no error.
SCARCE = ("out-of-resources", "limit-exceeded")


class LookAhead:
    """At most one step ahead of a sequence.

    Attributes:
        undone: whether a step was undone since it was last set to False.
    """

    __slots__ = ("_future", "_pages", "_sequence", "_token", "undone")

    def __init__(self, sequence: Sequence) -> None:
        """No step yet."""
        self.undone = False
        self._sequence = sequence
        self._future: int | None = None  # of the step's choice; None if no step is ahead
        self._token: int | None = None  # the token that the step runs, once it is known
        self._pages = 0  # that the sequence had before

    @property
    def is_queued(self) -> bool:
        """Whether a step is ahead."""
        return self._future is not None

    def queue(self, sampler: int) -> None:
        """Queues the step of the token that the sampler was asked for, if there is room for it.

        Nothing is pending, and no step is ahead.

        Raises:
            PieError: of the server, if it is no lack of room.
        """
        sequence = self._sequence
        pages = sequence.pages
        start = len(sequence.tokens)
        first = start // pages.size
        if first < pages.read_only:
            return  # it would have to be copied first, which could not be undone
        count = len(pages.addresses)
        # Once a token: the bindings without the checks of `raw`.
        try:
            # The step has an embed of its own: if it is undone, the other hidden state is needed.
            if not sequence.spare:
                sequence.spare = [raw.alloc_emb(sequence.queue, 1), 1]
            if first == count:
                pages.grow(first + 1)
            self._future = _bindings.sample.step(
                sequence.queue,
                sampler,
                start + sequence.shift,
                sequence.spare[0],
                pages.inputs(-(-start // pages.size)),
                pages.addresses[first],
                sequence.adapter or "",
            )
        except (_bindings.Err, PieError) as error:
            pages.truncate(start, count)
            text = str(error) if isinstance(error, PieError) else error.value
            if text.startswith(SCARCE):
                return
            raise PieError(text) from None
        self._token = None
        self._pages = count
        sequence.tentative = self
        sequence.in_flight = True

    def arrived(self, token: int) -> None:
        """Notes the token that the step runs: what was queued before it has taken effect."""
        sequence = self._sequence
        sequence.completed()
        if self._future is not None:
            self._token = token
            sequence.in_flight = True  # the step itself

    def confirm(self) -> int | None:
        """Makes the step part of the sequence, and gives the future of the token after it.

        None if there is no step, or it is undone because other tokens are pending than the step's.
        """
        future = self._future
        if future is None:
            return None
        sequence = self._sequence
        if sequence.pending != [self._token]:
            self.retract()
            return None
        self._future = None
        sequence.tentative = None
        sequence.step_taken(sequence.pending[0])
        return future

    def retract(self) -> None:
        """Undoes the step, if there is one. It may still run, but what it writes is not seen."""
        future, self._future = self._future, None
        if future is None:
            return
        sequence = self._sequence
        sequence.tentative = None
        if self._token is not None:
            sequence.in_flight = False  # but for the step
        sequence.unseen = True
        self.undone = True
        with suppress(PieError):  # gone with a lost worker, or taken with an error
            raw.cancel(future)
        # The slot is empty again for what is queued from now on. The step was queued before, so it
        # can't overwrite that: commands of one queue take effect in order.
        sequence.pages.truncate(len(sequence.tokens), self._pages)
