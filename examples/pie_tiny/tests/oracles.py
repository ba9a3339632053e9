"""Writers that play episodes without a model: one that does everything right, and its mutations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from examples.pie_tiny.call_episodes import Calls
from examples.pie_tiny.corpus.calls import call_block, final_results
from examples.pie_tiny.corpus.functions import Value
from examples.pie_tiny.corpus.sample import CLOSE, END, SPECIAL_TOKENS, TRAP
from examples.pie_tiny.corpus.tasks import Chain, Request, closing_words, identifier
from examples.pie_tiny.episodes import Plain, Vocabulary

Change = Callable[[str], str]
"""Makes something else of what the oracle is about to write: a block, or its closing words."""


@cache
def byte_tokenizer() -> Tokenizer:
    """Every byte a token, and the special tokens, which come first as in the real one."""
    entries = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


@cache
def vocabulary() -> Vocabulary:
    """That of the byte tokenizer."""
    return Vocabulary(byte_tokenizer())


def write(episode: Plain, text: str) -> str:
    """Writes text into an episode, token by token; returns what it put in, which may only be at the
    end.
    """
    words = vocabulary()
    given: Sequence[int] = ()
    for token in words.encode(text):
        if episode.done:
            break
        assert not given, "something was put in while a block was open"
        given = episode.sampled(token)
    return words.decode(given)


def recite(episode: Plain, change: Change = lambda text: text) -> None:
    """Writes what the sample says; what the episode puts in must be what the sample has there."""
    pieces = iter(episode.sample.pieces[1:])
    for piece in pieces:
        if episode.done:
            return
        given = write(episode, change(piece.text))
        following = next(pieces, None)
        if following and change(piece.text) == piece.text:
            assert given == following.text
    assert episode.done


@dataclass
class Executor:
    """A writer of asynchronous calls that only knows the request and what it is interrupted
    with.
    """

    request: Request
    known: int
    order: Callable[[list[tuple[int, int]]], tuple[int, int]] = min
    change: Change = lambda text: text
    waits: bool = True
    step: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)

    def play(self, episode: Calls) -> None:
        """Writes until the episode ends."""
        while not episode.done:
            ready = [
                (-chain[self.step.get(number, 0)].function.estimate, number)
                for number, chain in enumerate(self.chains)
                if number not in self.waiting and self.step.get(number, 0) < len(chain)
            ]
            if ready:
                text = self._call(self.order(ready)[1])
            elif self.waiting and self.waits:
                text = TRAP + CLOSE
            else:
                text = closing_words(final_results(self.chains)) + END
            self._read(write(episode, self.change(text)))

    @property
    def chains(self) -> tuple[Chain, ...]:
        """Those it has been told of."""
        return self.request.chains[: self.known]

    def _call(self, number: int) -> str:
        step = self.step.get(number, 0)
        chain = self.chains[number]
        previous: Value | None = chain[step - 1].result if step else None
        self.step[number] = step + 1
        if chain[step].answered:
            self.waiting.add(number)
        return call_block(identifier(self.chains, number, step), chain[step].text(previous))

    def _read(self, interrupts: str) -> None:
        for name, value in re.findall(r"\[INTR\](\w+)\[HEAD\](.*?)\[END\]", interrupts):
            if name == "user":
                self.known += 1
                continue
            number = ord(name[0]) - ord("a")
            if number >= len(self.chains):
                continue  # of a call that a change has added
            self.waiting.discard(number)
            if value.startswith("error: "):
                self.step[number] = len(self.chains[number])


def once(old: str, new: str) -> Change:
    """Replaces text the first time that it is about to be written."""
    left = [True]

    def change(text: str) -> str:
        if left[0] and old in text:
            left[0] = False
            return text.replace(old, new, 1)
        return text

    return change
