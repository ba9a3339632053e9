"""A context of a smaller model, whose run drafts what the run of another context guesses."""

from __future__ import annotations

from inferlet._run import NO_GUESSES, Run, alike
from inferlet._sequence import Sequence


class Drafts:
    """Drafts for the runs of a generation, one after the other."""

    __slots__ = ("_most", "_run", "_sampler", "_sequence")

    def __init__(self, sequence: Sequence, most: int) -> None:
        """Nothing runs yet.

        Args:
            sequence: of the smaller model; its text becomes that of the generation.
            most: guesses at a time.
        """
        self._sequence = sequence
        self._most = most
        self._run: Run | None = None
        self._sampler = 0  # of the run

    async def follow(self, text: list[int]) -> None:
        """Gives the sequence a text, of which it keeps what it has. Raises as `output_embed`."""
        self.end(text)
        sequence = self._sequence
        sequence.retract()
        sequence.truncate(alike(sequence.tokens + sequence.pending, text))
        sequence.pending += text[len(sequence) :]
        await sequence.output_embed()

    def start(self, run: Run, parameters: str) -> None:
        """Has a run guess what one of this sequence chooses, or nothing without room for that.

        Args:
            run: that has just been started behind the same text.
            parameters: of its sampler.
        """
        sequence = self._sequence
        room = sequence.model.max_position - len(sequence.tokens) - sequence.shift
        if room < 2:
            return
        drafting = Run(sequence)
        self._sampler = sequence.open_sampler(parameters)
        if drafting.start(self._sampler, min(run.most, room), frozenset(), NO_GUESSES):
            self._run = drafting
            run.guess_from(drafting, self._most)
        else:
            sequence.close_sampler(self._sampler)

    def end(self, text: list[int]) -> None:
        """The other run is over, behind some text: what has been drafted of it stays."""
        run, self._run = self._run, None
        if run is not None:
            run.keep(text[len(self._sequence.tokens) :])
            self._sequence.close_sampler(self._sampler)
