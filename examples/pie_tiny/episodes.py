"""Episodes without calls: a prompt that is continued to its end, and a ReAct trace with
observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from examples.pie_tiny.corpus.sample import END, SPECIAL_TOKENS, Sample

MARGIN = 64
"""Tokens that an episode may take beyond one and a half times what the sample takes."""


class Vocabulary:
    """Text to token ids and back, and which of the ids are special."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        numbers = tokenizer.get_vocab()
        self.special: Mapping[int, str] = {numbers[text]: text for text in SPECIAL_TOKENS}
        self.newlines = frozenset(
            number
            for number in range(tokenizer.get_vocab_size())
            if "\n" in tokenizer.decode([number])
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a piece of text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class Plain:
    """A prompt and whatever the model makes of it, up to `<|end|>`.

    Attributes:
        sample: what it was made from.
        text: what the model has written, without `<|end|>`; complete when done.
        whole: whether it ended by itself and was not cut.
    """

    def __init__(self, vocabulary: Vocabulary, sample: Sample) -> None:
        self.sample = sample
        self.vocabulary = vocabulary
        self.prompt: Sequence[int] = vocabulary.encode(sample.prompt)
        lengths = [len(vocabulary.encode(piece.text)) for piece in sample.pieces]
        self.expected = sum(lengths)
        learned = sum(
            length for length, piece in zip(lengths, sample.pieces, strict=True) if piece.learned
        )
        self._left = learned * 3 // 2 + MARGIN
        self._ids: list[int] = []
        self.text = ""
        self.done = self.whole = False

    def sampled(self, token: int) -> Sequence[int]:
        """Takes the next token."""
        self._left -= 1
        if self.vocabulary.special.get(token) == END:
            self.done = self.whole = True
        elif self._left <= 0:
            self.done = True
        else:
            self._ids.append(token)
            return self.written(token)
        self.text = self.vocabulary.decode(self._ids)
        return ()

    def written(self, token: int) -> Sequence[int]:
        """The tokens put in after a token that does not end the episode: nothing."""
        return ()

    def cut(self) -> None:
        """Ends it where it is."""
        self.done = True
        self.text = self.vocabulary.decode(self._ids)


class React(Plain):
    """A ReAct trace: the line after each action is its observation.

    Attributes:
        actions: those the model has written.
    """

    def __init__(self, vocabulary: Vocabulary, sample: Sample) -> None:
        super().__init__(vocabulary, sample)
        self.actions: list[str] = []
        observed = [piece.text for piece in sample.pieces[1:] if not piece.learned]
        actions = sample.answer["actions"]
        assert isinstance(actions, list)
        self._observations = dict(zip(actions, observed, strict=True))
        self._line: list[int] = []

    def written(self, token: int) -> Sequence[int]:
        """After an action's line, its observation; `nothing found` for one that was not to be
        expected.
        """
        self._line.append(token)
        if token not in self.vocabulary.newlines:
            return ()
        line, self._line = self.vocabulary.decode(self._line), []
        if not line.startswith(ACTION):
            return ()
        action = line.removeprefix(ACTION).removesuffix("\n")
        self.actions.append(action)
        ids = self.vocabulary.encode(self._observations.get(action, "Observation: nothing found\n"))
        self._ids += ids
        return ids


ACTION = "Action: "
