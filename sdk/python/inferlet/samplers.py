"""Rules for choosing tokens, each a short function for device programs, and ready-made programs.

A filter takes logits `[vocabulary]` and returns others; minus infinity rules a token out. Filters
are put together in a program of one's own::

    from inferlet import device, samplers

    @device.program
    def mine(logits, state):
        logits = samplers.repetition_penalty(logits, 1.2)
        return device.draw(samplers.top_p(logits / state.temperature, 0.9))

    context.generate(mine(temperature=0.7))

Numbers may be Python's, which make another program for each value, or of the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferlet.device import (
    State,
    Tensor,
    Value,
    counts,
    draw,
    given,
    iota,
    maximum,
    minimum,
    newest,
    nucleus,
    program,
    step,
    uniform,
    where,
)
from inferlet.device import hash as hashed

_NEVER = -math.inf


# What rules tokens out by how likely they are


def top_k(logits: Tensor, k: int | Tensor) -> Tensor:
    """The `k` most likely tokens."""
    if isinstance(k, int):
        return _only(logits, logits.top(k), True)
    return _only(logits, logits.descending(), iota() < k)


def top_p(logits: Tensor, p: Value) -> Tensor:
    """The fewest likely tokens that reach a mass."""
    return logits.where(nucleus(logits, p), _NEVER)


def min_p(logits: Tensor, p: Value) -> Tensor:
    """Tokens that are at least `p` times as likely as the likeliest."""
    return logits.where(logits - logits.max() >= _log(p), _NEVER)


def top_a(logits: Tensor, a: Value) -> Tensor:
    """Tokens at least as likely as `a` times the square of the likeliest one's probability."""
    chances = logits.softmax()
    best = chances.max()
    return _likely(logits, chances, a * best * best)


def epsilon_cutoff(logits: Tensor, epsilon: Value) -> Tensor:
    """Tokens with a probability of at least `epsilon`; and in any case the likeliest."""
    return _likely(logits, logits.softmax(), epsilon)


def eta_cutoff(logits: Tensor, epsilon: Value) -> Tensor:
    """As `epsilon_cutoff`, less where the model is unsure (Hewitt et al. 2022)."""
    logs, entropy = _entropy(logits)
    bar = (-entropy).exp() * (epsilon.sqrt() if isinstance(epsilon, Tensor) else epsilon**0.5)
    return _likely(logits, logs.exp(), minimum(bar, epsilon))


def typical_p(logits: Tensor, p: Value) -> Tensor:
    """Tokens whose surprise is nearest to the expected, of a mass (Meister et al. 2022)."""
    logs, entropy = _entropy(logits)
    distance = abs(-logs - entropy)
    order = distance.argsort()
    short = logs.exp()[order].cumsum() < p
    last = minimum(short.to_int().sum(), iota().max())
    return logits.where(distance <= distance[order[last]], _NEVER)


def tail_free(logits: Tensor, z: Value, count: int = 256) -> Tensor:
    """The most likely of `count` tokens, up to where their curve is flat (Phénix and Egan 2019)."""
    order = logits.top(count)
    chances = logits.softmax()[order]
    slopes = chances[:-1] - chances[1:]
    bends = abs(slopes[:-1] - slopes[1:])
    weight = (bends / bends.sum()).cumsum()
    # The first one stays, and each whose bends before it have not reached z.
    kept = (weight <= z) | (iota(count - 2) == 0)
    return _only(logits, order[: count - 2], kept)


def xtc(logits: Tensor, threshold: Value, probability: Value) -> Tensor:
    """Sometimes without all likely tokens but the least likely of them."""
    chances = logits.softmax()
    likely = (chances >= threshold) & (chances > 0.0)
    least = (-logits).where(likely, _NEVER).flip().argmax()  # from the end: of equal ones the last
    out = likely & (iota() != iota().max() - least) & (uniform() < probability)
    return logits.where(~out, _NEVER)


# What looks at the text


def repetition_penalty(logits: Tensor, factor: Value) -> Tensor:
    """Of a token that occurs, a logit above 0 is divided, one below multiplied (CTRL, 2019)."""
    less = where(logits > 0.0, logits / factor, logits * factor)
    return less.where((counts() > 0) | given(), logits)


def presence_penalty(logits: Tensor, penalty: Value) -> Tensor:
    """Taken off tokens that were generated, once."""
    return logits - (counts() > 0).to_float() * penalty


def frequency_penalty(logits: Tensor, penalty: Value) -> Tensor:
    """Taken off tokens that were generated, each time."""
    return logits - counts().to_float() * penalty


def no_repeat_ngram(logits: Tensor, size: int, look_back: int = 1024) -> Tensor:
    """No sequence of `size` tokens comes twice."""
    tokens, lengths = _repeated(size - 1, look_back)
    return _without(logits, tokens, (lengths >= size - 1) & (tokens >= 0))


def banned_sequences(logits: Tensor, sequences: Tensor) -> Tensor:
    """None of some sequences of tokens comes as a whole: what `padded` makes of them, of the
    state.
    """
    size = sequences.shape[1]
    last = sequences.transpose()[size - 1]
    follows = last >= 0
    if size > 1:
        before = sequences[: size - 1]
        follows = follows & ((before == newest(size - 1)) | (before < 0)).all()
    return _without(logits, last, follows)


def padded(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sequences of tokens as lists of one length, with -1 before the shorter ones."""
    size = max(map(len, sequences))
    return [[-1] * (size - len(one)) + list(one) for one in sequences]


def dry(
    logits: Tensor,
    multiplier: Value,
    base: Value = 1.75,
    allowed: int | Tensor = 2,
    breakers: Tensor | None = None,
    look_back: int = 1024,
) -> Tensor:
    """Less likely what goes on with a repetition of n tokens, by `multiplier * base ** (n -
    allowed)`. A repetition ends at the breakers: a list, of the state.
    """
    tokens, lengths = _repeated(64, look_back, breakers)
    excess = (lengths - allowed).to_float()
    penalty = where((lengths >= allowed) & (lengths > 0), _power(base, excess) * multiplier, 0.0)
    taken = (iota() * 0).to_float().scatter_max(tokens, penalty)
    return logits - taken


def watermark(logits: Tensor, bias: Value, share: float = 0.5, key: int = 0) -> Tensor:
    """Likelier what a hash of the token before favours (Kirchenbauer et al. 2023).

    `inferlet.watermark` recognizes the text.
    """
    before = newest(1)[0]
    drawn = (hashed(hashed(key + before * 0, before), iota()) >> 40) & 0xFFFFFF
    green = (drawn.to_float() < share * 2.0**24) & (before >= 0)
    return logits + green.to_float() * bias


# What is asked for by token


def logit_bias(logits: Tensor, tokens: Value, values: Value) -> Tensor:
    """Values added to tokens' logits: lists of the same length, of the state."""
    return logits.scatter_add(tokens, values)


def allowed_tokens(logits: Tensor, tokens: Value) -> Tensor:
    """None but some tokens: a list, of the state."""
    return _only(logits, tokens, True)


def min_tokens(logits: Tensor, count: Value, ends: Value) -> Tensor:
    """Not one of the tokens that end the text before `count` were chosen."""
    early = (step() < count) & (_nothing().scatter_max(ends, True))
    return logits.where(~early, _NEVER)


def healed(logits: Tensor, tokens: Value) -> Tensor:
    """Token healing: the first token is one of some, those that begin with what was cut off."""
    return where(step() == 0, allowed_tokens(logits, tokens), logits)


# What a context beside says as well: `device.beside(0)`


def guidance(logits: Tensor, other: Tensor, scale: Value) -> Tensor:
    """So many times as far from a text without the prompt (Sanchez et al. 2023)."""
    without = other.log_softmax()
    return without + (logits.log_softmax() - without) * scale


def contrastive(logits: Tensor, other: Tensor, share: Value = 0.1) -> Tensor:
    """What a weaker model finds unlikely, of tokens with a share of the likeliest's probability (Li
    et al. 2023).
    """
    return min_p(logits, share) - other.log_softmax()


def context_aware(logits: Tensor, other: Tensor, alpha: Value) -> Tensor:
    """What a document makes likelier than the same text without it says (Shi et al. 2024)."""
    return logits * (alpha + 1.0) - other * alpha


# Programs


@program
def tempered(logits: Tensor, state: State) -> Tensor:
    """Top-p at a temperature: `tempered(temperature=0.7, p=0.9)`."""
    return draw(top_p(_cooled(logits, state.temperature), state.p))


@program
def mirostat(logits: Tensor, state: State) -> Tensor:
    """Keeps the surprise at `tau` bits (Basu et al. 2021, version 2).

    `mirostat(mu=10.0, tau=5.0, rate=0.1)`; mu begins at twice tau.
    """
    surprise = -logits.log_softmax() / math.log(2)
    chosen = draw(logits.where((surprise <= state.mu) | (logits >= logits.max()), _NEVER))
    state.mu -= state.rate * (surprise[chosen] - state.tau)
    return chosen


@program
def entropy_temperature(logits: Tensor, state: State) -> Tensor:
    """A lower temperature where the model is sure (Zhang et al., EDT, 2024).

    `entropy_temperature(temperature=1.0, theta=1.0)`: `temperature * 0.8 ** (theta / entropy)`.
    """
    _, entropy = _entropy(logits)
    scaled = state.temperature * ((state.theta / entropy) * math.log(0.8)).exp()
    return where(scaled > 1e-6, draw(logits / scaled), logits.argmax())


@program
def gumbel_watermark(logits: Tensor, state: State) -> Tensor:
    """Draws by a key and the newest tokens, not by chance (Aaronson and Kirchner 2022).

    `gumbel_watermark(temperature=1.0, key=42)`. The text is as likely as any, and who has the
    key recognizes it: `inferlet.watermark.gumbel_score`.
    """
    words = hashed(_context(state.key, 3), iota()) >> 40
    share = ((words & 0xFFFFFF).to_float() + 0.5) * 2.0**-24
    return (_cooled(logits, state.temperature) - (-share.log()).log()).argmax()


@program
def synthid(logits: Tensor, state: State) -> Tensor:
    """A tournament in 30 rounds by bits of a keyed hash (Dathathri et al., SynthID-Text, 2024).

    `synthid(temperature=1.0, key=42)`. `inferlet.watermark.synthid_score` recognizes the text.
    """
    words = hashed(_context(state.key, 4), iota())
    chances = _cooled(logits, state.temperature).softmax()
    for i in range(30):
        bits = ((words >> i) & 1).to_float()
        chances = chances * (bits + 1.0 - (chances * bits).sum())
    return draw(chances.log())


def _cooled(logits: Tensor, temperature: Tensor) -> Tensor:
    """The logits at a temperature; at 0 only the likeliest is left."""
    kept = (temperature > 1e-6) | (iota() == logits.argmax())
    return (logits / maximum(temperature, 1e-6)).where(kept, _NEVER)


def _context(key: Tensor, count: int) -> Tensor:
    """A hash of a key and the newest tokens, int."""
    for token in newest(count):
        key = hashed(key, token)
    return key


def _only(logits: Tensor, places: Value, kept: Value) -> Tensor:
    """The logits at places that are kept; the rest is ruled out."""
    return logits.where(_nothing().scatter_max(places, kept), _NEVER)


def _without(logits: Tensor, places: Tensor, banned: Tensor) -> Tensor:
    return logits.where(~_nothing().scatter_max(places, banned), _NEVER)


def _nothing() -> Tensor:
    """False for each token."""
    return iota() < 0


def _likely(logits: Tensor, chances: Tensor, bar: Value) -> Tensor:
    """What is at least as likely as a bar, and in any case the likeliest."""
    return logits.where((chances >= bar) | (logits >= logits.max()), _NEVER)


def _entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and the entropy in nats."""
    logs = logits.log_softmax()
    parts = logs.exp() * logs
    return logs, -parts.where(~parts.is_nan(), 0.0).sum()


def _repeated(most: int, look_back: int, breakers: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The newest tokens `[look_back]`, and how many before each, `most` at most, are the text's
    last ones. A repetition ends at the breakers.
    """
    text = newest(look_back + most)
    tokens = text[most:]
    closed = text < 0
    if breakers is not None:
        closed = closed | _nothing().scatter_max(breakers, True)[text]
    if most == 0:
        return tokens, iota(look_back) * 0
    # The tokens before each, the nearest first: `[look_back, most]`.
    before = where(closed, -2, text)[iota(look_back).reshape(look_back, 1) - iota(most) + most - 1]
    differs = ~(before == text.flip()[:most])
    lengths = where(differs.any(), differs.to_int().argmax(), most)
    return tokens, where(closed[most:], 0, lengths)


def _log(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value else _NEVER


def _power(base: Value, exponent: Tensor) -> Tensor:
    return base**exponent
