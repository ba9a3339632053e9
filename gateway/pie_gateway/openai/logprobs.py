"""Log-probabilities of tokens, as chat and completions tell them."""

from __future__ import annotations

from pie_gateway.backend.events import Piece, Prompt
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.schemas.chat import ChatLogprobs, TokenLogprob, TopLogprob
from pie_gateway.schemas.completions import CompletionLogprobs


def of_chat(piece: Piece, words: Vocabulary) -> ChatLogprobs:
    """The tokens of a piece."""
    told = []
    for token, (logprob, top) in zip(piece.ids, piece.logprobs, strict=True):
        likely = [
            TopLogprob(words.text_of(other), value, list(words.bytes_of(other)))
            for other, value in top
        ]
        told.append(
            TokenLogprob(words.text_of(token), logprob, list(words.bytes_of(token)), likely)
        )
    return ChatLogprobs(told)


def of_prompt(read: Prompt, words: Vocabulary) -> CompletionLogprobs:
    """The tokens of a prompt; nothing is known of how likely the first was."""
    first, *rest = read.ids
    text = words.text_of(first)
    alone = CompletionLogprobs([0], [None], [text], [None])
    piece = Piece(0, "", len(rest), rest, read.logprobs)
    return alone.followed_by(of_completion(piece, words, len(text)))


def of_completion(piece: Piece, words: Vocabulary, offset: int) -> CompletionLogprobs:
    """The tokens of a piece, whose first one begins at a character of the choice's text."""
    told = CompletionLogprobs([], [], [], [])
    for token, (logprob, top) in zip(piece.ids, piece.logprobs, strict=True):
        text = words.text_of(token)
        told.tokens.append(text)
        told.token_logprobs.append(logprob)
        # Of tokens that are the same as text, such as parts of a character, the likeliest is told.
        likely = {words.text_of(other): value for other, value in reversed(top)}
        # The token itself is always among them.
        told.top_logprobs.append({**likely, text: logprob} if top else None)
        told.text_offset.append(offset)
        offset += len(text)
    return told
