"""Choices of an answer, put together from events, and the log-probabilities of their tokens."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass, field

from pie_gateway.backend.job import End, Piece, Prompt, TokenLogprobs
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.schemas.chat import ChatLogprobs, TokenLogprob, TopLogprob
from pie_gateway.schemas.completions import CompletionLogprobs
from pie_gateway.schemas.sampling import PromptLogprob, PromptLogprobs


@dataclass
class Whole:
    """One choice."""

    text: str = ""
    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached: int = 0
    reason: str = "stop"
    stop: str | None = None

    def add(self, event: Piece | End) -> None:
        """Adds what an event says of it."""
        match event:
            case Piece(_, text, tokens, ids, logprobs):
                self.text += text
                self.tokens += tokens
                self.ids += ids
                self.logprobs += logprobs
            case End(_, reason, stop, cached=cached):
                self.reason, self.stop, self.cached = reason, stop, cached

    @property
    def piece(self) -> Piece:
        """All of it."""
        return Piece(0, self.text, self.tokens, self.ids, self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, by which the best of several is chosen."""
        return sum(own for own, _ in self.logprobs) / max(1, len(self.logprobs))


def chat_logprobs(piece: Piece, words: Vocabulary) -> ChatLogprobs:
    """The tokens of a piece."""
    logprobs = []
    for token, (logprob, top) in zip(piece.ids, piece.logprobs, strict=True):
        likely = [
            TopLogprob(words.text_of(other), value, list(words.bytes_of(other)))
            for other, value in top
        ]
        logprobs.append(
            TokenLogprob(words.text_of(token), logprob, list(words.bytes_of(token)), likely)
        )
    return ChatLogprobs(logprobs)


def prompt_logprobs(read: Prompt, words: Vocabulary, most: int) -> PromptLogprobs:
    """The tokens of a prompt and `most` of the likeliest, as vLLM has it; none of the first."""
    found: PromptLogprobs = [None]
    for token, (own, top) in zip(read.ids[1:], read.logprobs, strict=True):
        entries = {token: PromptLogprob(own, None, words.text_of(token))}
        for rank, (other, value) in enumerate(top[:most], 1):
            entries[other] = PromptLogprob(value, rank, words.text_of(other))
        found.append({str(each): entry for each, entry in entries.items()})
    return found


def echoed_logprobs(read: Prompt, words: Vocabulary, echo: str, most: int) -> CompletionLogprobs:
    """The tokens of a prompt, with so many of the likeliest; nothing is known of how likely the
    first was. `echo` is the prompt as text, which lacks the token that begins every text.
    """
    first, *rest = read.ids
    text = words.text_of(first)
    alone = CompletionLogprobs([0], [None], [text], [None])
    logprobs = [(own, top[:most]) for own, top in read.logprobs]
    piece = Piece(0, "", len(rest), rest, logprobs)
    offset = len(text) if echo.startswith(text) else 0
    return alone.followed_by(completion_logprobs(piece, words, offset))


def completion_logprobs(piece: Piece, words: Vocabulary, offset: int) -> CompletionLogprobs:
    """The tokens of a piece, whose first one begins at a character of the choice's text."""
    logprobs = CompletionLogprobs([], [], [], [])
    decoder = getincrementaldecoder("utf-8")("replace")  # a character may be of several tokens
    for token, (logprob, top) in zip(piece.ids, piece.logprobs, strict=True):
        text = words.text_of(token)
        logprobs.tokens.append(text)
        logprobs.token_logprobs.append(logprob)
        # Of tokens that are the same as text, such as parts of a character, the likeliest counts.
        likely = {words.text_of(other): value for other, value in reversed(top)}
        # The token itself is always among them.
        logprobs.top_logprobs.append({**likely, text: logprob})
        logprobs.text_offset.append(offset)
        offset += len(decoder.decode(words.bytes_of(token)))
    return logprobs
