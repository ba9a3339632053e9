"""Guesses of a smaller model: what a run of it chooses is what another run guesses.

Y. Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023. Both runs
begin behind the same text. The drafting one goes as far ahead as the other may guess. Once that has
verified it, the drafting one goes on behind what stands: its pages are cut to that, and the token
that the other run has chosen takes the place of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.speculation import Price


class Drafted:
    """Guesses the tokens of one run by those of another one, of a smaller model."""

    def __init__(self, drafts: RunCommand, most: int, follower: RunCommand) -> None:
        """Has the other run wait until guesses are wanted.

        Args:
            drafts: the run of the smaller model, which has not begun.
            most: tokens to guess at a time.
            follower: the run that guesses.
        """
        self._drafts = drafts
        self._most = most
        self._follower = follower
        self._text: list[int] = []  # the follower's tokens
        self._agreed = 0  # tokens that both runs have
        self._waits = False
        drafts.lead()

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of the follower's tokens that are new."""
        self._text += tokens[len(self._text) :]

    def guess(self, most: int, price: Price) -> list[int] | None:
        """The next tokens, at most so many; None if they are on their way."""
        drafts, length = self._drafts, len(self._text)
        wanted = min(most, self._most, drafts.most - 1 - length)
        if drafts.over or drafts.row is None or wanted < 1:  # over, or not begun
            return []
        if self._waits:
            return None
        tokens = drafts.tokens
        end = min(length, len(tokens))
        while self._agreed < end and tokens[self._agreed] == self._text[self._agreed]:
            self._agreed += 1
        if self._agreed == length and len(tokens) > length:
            return tokens[length : length + wanted].tolist()
        until = length + wanted
        if self._agreed < min(length, len(tokens)):
            if len(tokens) < drafts.limit:  # with steps under way it cannot be corrected
                until = drafts.limit
            else:
                drafts.correct(self._agreed, self._text[self._agreed])
                self._agreed += 1
        self._waits = True
        drafts.when(until, self)
        drafts.allow(until)
        return None

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """Nothing: the program has said how many to guess."""

    @property
    def rests(self) -> int:
        """It never rests."""
        return 0

    # Waits for the drafting run's tokens

    @property
    def ready(self) -> bool:
        """True if it does not wait any more."""
        return not self._waits

    def resolve(self) -> None:
        """The tokens are there, or there will be none: the follower may guess."""
        self._waits = False
        follower = self._follower
        if not follower.over and follower.table is not None:
            follower.table.changed(follower)
