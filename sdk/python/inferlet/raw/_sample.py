"""Interface `sample`: tokens chosen by the model's worker."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import sample as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32, as_u32s


def create_sampler(queue: int, parameters: str) -> int:
    """Makes a sampler of the queue's model. `parameters` is a JSON object; an empty text is `{}`:
    `temperature` (1; 0 takes the most likely token), `top_k` (0 is all), `top_p` (1), `min_p` (0),
    `repetition_penalty` (1), `presence_penalty` (0), `frequency_penalty` (0), `logit_bias` (token
    ids as texts to numbers; null rules a token out), `seed` (0 to 2^64 - 1; drawn by the server
    unless told), `logprobs` (0; how many of the most likely tokens `take_sample` tells besides, 256
    at most).

    Logits go through repetition, presence and frequency penalty, bias, mask, temperature, top-k,
    top-p (of what top-k has left) and min-p, in this order. The repetition penalty counts tokens
    given and generated, presence and frequency only those generated.
    Errors: `invalid-handle`, `invalid-argument`, `unsupported`, `limit-exceeded`,
    `out-of-resources`.
    """
    try:
        answer: int = interface.create_sampler(as_u32(queue), as_text(parameters))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_sampler(queue: int, sampler: int) -> None:
    """Ends a sampler once the commands queued before have taken effect; its handle ends at once.
    Errors: `invalid-handle`.
    """
    try:
        interface.destroy_sampler(as_u32(queue), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None


def feed_sampler(queue: int, sampler: int, tokens: list[int], generated: bool) -> None:
    """Tells a sampler of tokens that it did not choose, for its penalties: `generated` ones, or those
    of the text that was given. Tokens that it chooses it counts by itself.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        interface.feed_sampler(as_u32(queue), as_u32(sampler), as_u32s(tokens), bool(generated))
    except Err as error:
        raise PieError(error.value) from None


def sample(queue: int, embed: int, sampler: int) -> int:
    """A future of a token that follows an output embed; consume it with `take_sample`. The sampler
    moves on even if the future is cancelled.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = interface.sample(as_u32(queue), as_u32(embed), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sample_masked(queue: int, embed: int, sampler: int, mask: list[int]) -> int:
    """As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token `t`.
    Errors: as `sample`.
    """
    try:
        answer: int = interface.sample_masked(
            as_u32(queue), as_u32(embed), as_u32(sampler), as_u32s(mask)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_sample(future: int) -> tuple[int, float, list[int], list[float]]:
    """Consumes a ready future of a token: the token, its log-probability, and the most likely tokens,
    most likely first, with theirs. Log-probabilities are those of the model's own distribution, as
    in `take_dist`: before temperature, penalties, biases, masks and filters.
    Errors: `invalid-handle`, `not-ready`; `invalid-argument` (every token is ruled out); or the
    error of what it stood for.
    """
    try:
        answer: tuple[int, float, list[int], list[float]] = interface.take_sample(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def next_token(future: int) -> int:
    """Waits until a future of a token is ready and consumes it, in one call: the token alone.
    Errors: `invalid-handle`; `invalid-argument` (every token is ruled out); or the error of what it
    stood for.
    """
    try:
        answer: int = interface.next_token(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def embed_sampled(queue: int, sampler: int, position: int, embed: int) -> None:
    """Embeds the token that a sampler chooses last among the calls so far, at a position, whether it
    is known already or not: the next steps can be queued before this one has run. If no token could
    be chosen, this command fails, and what follows it in its queue with it.
    Errors: `invalid-handle`, `invalid-argument` (nothing was sampled yet), `limit-exceeded`.
    """
    try:
        interface.embed_sampled(as_u32(queue), as_u32(sampler), as_u32(position), as_u32(embed))
    except Err as error:
        raise PieError(error.value) from None


def step(
    queue: int,
    sampler: int,
    position: int,
    embed: int,
    input_pages: list[int],
    output_page: int,
    adapter: str,
) -> int:
    """A generation's next step, in one call: `embed_sampled`; the forward of that embed over the input
    pages, through an adapter if one is named, with keys and values into a page and the hidden state
    into the embed itself; and `sample` of it, whose future is returned. An error leaves none of them
    queued.
    Errors: as of these three functions, and of `forward_with_adapter`.
    """
    try:
        answer: int = interface.step(
            as_u32(queue),
            as_u32(sampler),
            as_u32(position),
            as_u32(embed),
            as_u32s(input_pages),
            as_u32(output_page),
            as_text(adapter),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer
