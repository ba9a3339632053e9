"""A run of the server as a generation uses it: many tokens for one call.

The server goes on by itself, token after token, up to a few more than were asked for. The sequence
shows the tokens that the program has been given, as it would without a run. Then the program either
goes on with those, or does something else: then the run is ended, and what came after the tokens
given is undone (`retract`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Several
from contextlib import suppress
from typing import NamedTuple

from inferlet import raw
from inferlet._generated import bindings
from inferlet._loop import is_alone, ready
from inferlet._pages import addresses, spans
from inferlet._sequence import Sequence
from inferlet.errors import PieError

# No room. A program that goes step by step would not have asked for it, so it is no error.
SCARCE = ("out-of-resources", "limit-exceeded")


class Guessing(NamedTuple):
    """How a run guesses its next tokens."""

    most: int = 0  # at a time
    like: tuple[int, ...] = ()  # tokens of other texts that this one may repeat
    jacobi: bool = False  # what steps chose is guessed; nothing is looked up


NO_GUESSES = Guessing()


class Run:
    """At most one run of a sequence at a time.

    Attributes:
        undone: whether choices were undone since it was last set to False.
        most: tokens that it may come to.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.undone = False
        self._sequence = sequence
        self._handle: int | None = None
        self.most = 0
        self._came: deque[int] = deque()  # tokens that the program has not been given
        self._given = 0  # tokens that it has
        self._last = 0  # of these

    def goes_on(self) -> bool:
        """True if the next token is the run's; it is undone if other tokens are pending."""
        if self._handle is None:
            return False
        if self._sequence.pending != ([self._last] if self._given else []):
            self.retract()
            return False
        return True

    def start(self, sampler: int, most: int, stops: frozenset[int], guessing: Guessing) -> bool:
        """Starts a run after the hidden state in the sequence's embed; nothing is pending. Returns
        whether there was room for it. Raises PieError: of the server, if it is no lack of room.
        """
        sequence = self._sequence
        pages, start = sequence.pages, len(sequence.tokens)
        first = start // pages.size
        if first < pages.read_only:
            return False  # it has to be copied first
        try:
            if not sequence.spare:
                sequence.spare = [raw.alloc_emb(sequence.queue, 1), 1]
            self._handle = raw.start_run(
                sequence.queue,
                sampler,
                sequence.embed[0],
                start + sequence.shift,
                sequence.spare[0],
                pages.inputs(-(-start // pages.size)),
                spans(pages.addresses[first:]),
                sequence.adapter or "",
                most,
                list(stops),
            )
        except PieError as error:
            if error.code in SCARCE:
                return False
            raise
        if guessing.most:
            known = [] if guessing.jacobi else sequence.known_tokens()
            text = [*guessing.like, *known][-sequence.model.max_position :]
            raw.speculate(sequence.queue, self._handle, text, guessing.most)
        self.most, self._given = most, 0
        sequence.tentative = self
        return True

    def guess_from(self, other: Run, guesses: int) -> None:
        """Guesses what another run chooses, so many tokens at a time; both have just begun."""
        assert self._handle is not None
        assert other._handle is not None
        drafting = other._sequence.queue, other._handle
        raw.speculate_with(self._sequence.queue, self._handle, *drafting, guesses)

    async def next(self) -> int | None:
        """The next token; None if the run was undone meanwhile. Raises PieError: what has ended the
        run. It is undone then but for the tokens given.
        """
        if not self._came and not await self._wait(1):
            return None
        token = self._came.popleft()
        if self._given:
            self._sequence.ran(1)
        self._given += 1
        self._last = token
        return token

    async def rest(self) -> list[int]:
        """All tokens up to the run's end; none if it was undone meanwhile. Raises as `next`."""
        if not await self._wait(max(1, self.most - self._given - len(self._came))):
            return []
        tokens = list(self._came)
        self._came.clear()
        self._give(tokens)
        return tokens

    async def text(
        self, before: list[int], ends: Several[str], *, to_client: bool
    ) -> tuple[list[int], str]:
        """All tokens with their text, which the server reads.

        Cancelled or failed, the sequence is as it was before the run.

        Args:
            before: the tokens before the run's first.
            ends: strings that end the run.
            to_client: whether the server sends the text to the client.

        Raises:
            RuntimeError: the run was undone meanwhile.
            PieError: what has ended the run.
        """
        queue, handle = self._sequence.queue, self._handle
        assert handle is not None
        try:
            future = raw.run_text(queue, handle, before, ends, [], to_client)
            await ready(future)
            text, count, _ = raw.take_run_text(future)
            if self._handle != handle:
                raise RuntimeError("the context was changed while its text was being generated")
            tokens = raw.take_tokens(queue, handle)[:count]
        except BaseException as error:
            self._failed(error)
            raise
        self._give(tokens)
        return tokens, text

    def logprobs(self, count: int) -> list[float] | None:
        """Log-probabilities of the last tokens that the program was given; None without a run."""
        if self._handle is None:
            return None
        queue, first = self._sequence.queue, self._given - count
        return list(raw.run_logprobs(queue, self._handle, first, count))

    def versions(self, count: int) -> list[str]:
        """The versions of the weights that computed these tokens; there is a run."""
        assert self._handle is not None
        began = raw.run_versions(self._sequence.queue, self._handle)[::-1]
        places = range(self._given - count, self._given)
        return [next(name for name, first in began if first <= place) for place in places]

    def _give(self, tokens: list[int]) -> None:
        """The program is given tokens: all but the last are in the sequence then."""
        sequence = self._sequence
        sequence.ran(int(self._given > 0))
        sequence.pending[:0] = tokens[:-1]
        sequence.ran(len(tokens) - 1)
        self._given += len(tokens)
        self._last = tokens[-1]

    async def _wait(self, count: int) -> bool:
        """Takes tokens, at least so many or all that come; False if the run was undone."""
        queue, handle = self._sequence.queue, self._handle
        assert handle is not None
        try:
            if is_alone():
                try:
                    tokens = bindings.sample.next_tokens(queue, handle, count)
                except bindings.Err as error:
                    raise PieError(error.value) from None
            else:
                progress = raw.run_progress(queue, handle, count)
                await ready(progress)
                raw.take(progress)
                if self._handle != handle:
                    return False
                tokens = raw.take_tokens(queue, handle)
        except PieError as error:
            self._failed(error)
            raise
        self._came.extend(tokens)
        self._sequence.ran(0)
        return True

    def _failed(self, error: BaseException) -> None:
        self.retract()
        if isinstance(error, PieError):
            self._sequence.recover(error)

    def keep(self, tokens: list[int]) -> None:
        """Ends the run, none of whose tokens was read: those stay that these begin with."""
        if self._handle is None:
            return
        with suppress(PieError):  # it has failed
            mine = list(raw.take_tokens(self._sequence.queue, self._handle))
            if same := alike(mine, tokens):
                self._give(mine[:same])
        self.retract()

    def retract(self) -> None:
        """Ends the run, if there is one: what came after the tokens given is undone."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        sequence = self._sequence
        sequence.tentative = None
        self.undone = self._given < self.most
        self._came.clear()
        with suppress(PieError):  # gone with a lost worker
            sequence.pages.addresses += addresses(raw.end_run(sequence.queue, handle, self._given))


def alike(one: list[int], other: list[int]) -> int:
    """How many of the first tokens are the same."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
