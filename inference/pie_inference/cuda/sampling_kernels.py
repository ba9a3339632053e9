"""Triton's kernels that choose tokens: `race` looks at all logits once, `decide` at what has won.

They mean what `sampling/choose.py` does, with the random numbers of `sampling/noise.py`. A filter
keeps some of the most likely tokens, so nothing has to be sorted or cut off: where the winner of
all is dropped, those more likely than it race on, until one is not. It is the one that would win
among those that the filter keeps.

Only with Triton, and only on a GPU, can this module be imported.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Rows of the parameters, int32 `[FIELDS, n]`. Numbers with a point are there by their bits.
START_LOW = tl.constexpr(0)  # of the random numbers
START_HIGH = tl.constexpr(1)
TEMPERATURE = tl.constexpr(2)  # 0: the most likely token
TOP_P = tl.constexpr(3)
FLOOR = tl.constexpr(4)  # the logarithm of min-p
TOP_K = tl.constexpr(5)  # 0: all
SAMPLER = tl.constexpr(6)
MASK = tl.constexpr(7)  # -1: none
EMBED = tl.constexpr(8)
FIELDS = 9

# What `race` finds in each block of a row: float32 `[NUMBERS, n, blocks]`, and int32 `[IDS, n,
# blocks]`.
HIGH = tl.constexpr(0)  # the model's largest logit
TOTAL = tl.constexpr(1)  # the sum of exp(logit - HIGH)
BEST = tl.constexpr(2)  # the largest logit that may be chosen
MASS = tl.constexpr(3)  # the sum of exp((logit - BEST) / temperature)
SCORE = tl.constexpr(4)  # of the race's winner, relative to BEST
NUMBERS = 5
LIKELIEST = tl.constexpr(0)
WINNER = tl.constexpr(1)
IDS = 2

RACE_BLOCK = 2048  # logits of a program of `race`
RACE_WARPS = 8
DECIDE_BLOCK = 4096  # logits that a program of `decide` looks at together
DECIDE_WARPS = 16

# Triton would compile a kernel again for a 1, or a multiple of 16.
_SIZES = ("count", "words", "blocks")
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)
_NONE = tl.constexpr(float("-inf"))
_LARGEST = tl.constexpr(3.4028234663852886e38)
_WEIGHTLESS = tl.constexpr(104.0)  # exp(-104) is 0 in float32
_EXACT = tl.constexpr(1e-6)  # a difference of logits that moves no weight by more


@triton.jit(do_not_specialize=_SIZES)
def race(
    logits,
    parameters,
    masks,
    numbers,
    ids,
    count,
    words,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block of one row: the sum for its log-probabilities, the most likely token, the race's
    winner.

    Args:
        logits: `[n, VOCABULARY]`, of the model.
        parameters: int32 `[FIELDS, n]`.
        masks: int32 `[masks, words]`, a bit per token that may be chosen.
        numbers: float32 `[NUMBERS, n, blocks]`, to be written.
        ids: int32 `[IDS, n, blocks]`, to be written.
        count: n.
        words: of a mask.
        VOCABULARY: tokens.
        BLOCK: tokens a block.
    """
    row, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    numbers += row * blocks + block
    ids += row * blocks + block
    size = count * blocks
    tokens = block * BLOCK + tl.arange(0, BLOCK)

    own = _read(logits, masks, row, -1, words, tokens, VOCABULARY)
    high = tl.max(own, 0)
    tl.store(numbers + HIGH * size, high)
    tl.store(numbers + TOTAL * size, tl.sum(tl.exp(own - _finite(high)), 0))

    mask = tl.load(parameters + MASK * count + row)
    values = _read(logits, masks, row, mask, words, tokens, VOCABULARY)
    best = tl.max(values, 0)
    tl.store(numbers + BEST * size, best)
    tl.store(ids + LIKELIEST * size, _first(values == best, tokens, VOCABULARY))

    temperature = _number(parameters + TEMPERATURE * count + row)
    if temperature > 0:
        scaled = (values - _finite(best)) / temperature
        scores = scaled - _log_variates(_start(parameters, count, row), tokens)
        score = tl.max(scores, 0)
        tl.store(numbers + MASS * size, tl.sum(tl.exp(scaled), 0))
        tl.store(numbers + SCORE * size, score)
        tl.store(ids + WINNER * size, _first(scores == score, tokens, VOCABULARY))


@triton.jit(do_not_specialize=_SIZES)
def decide(
    logits,
    parameters,
    masks,
    numbers,
    ids,
    kept,
    out,
    count,
    words,
    blocks,
    VOCABULARY: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row, after `race`: the token, -1 if all are ruled out, and its log-probability.

    Args (the others as of `race`):
        kept: int64 `[samplers]`: the sampler's is set to the token.
        out: int32 `[2, n]`, to be written: tokens, and the bits of float32 log-probabilities.
        blocks: that `race` had.
        BLOCKS: at least as many, a power of two.
        BLOCK: tokens at a time where all are looked at again.
    """
    row = tl.program_id(0)
    size = count * blocks
    at = tl.arange(0, BLOCKS)
    live = at < blocks
    numbers += row * blocks + at
    ids += row * blocks + at

    bests = tl.load(numbers + BEST * size, mask=live, other=_NONE)
    best = tl.max(bests, 0)
    likeliest = _first(
        bests == best, tl.load(ids + LIKELIEST * size, mask=live, other=VOCABULARY), VOCABULARY
    )
    token = likeliest
    temperature = _number(parameters + TEMPERATURE * count + row)
    if (temperature > 0) & (best > _NONE):
        shifts = (bests - best) / temperature
        scores = tl.load(numbers + SCORE * size, mask=live, other=_NONE) + shifts
        winners = tl.load(ids + WINNER * size, mask=live, other=VOCABULARY)
        token = _first(scores == tl.max(scores, 0), winners, VOCABULARY)
        masses = tl.load(numbers + MASS * size, mask=live, other=0.0) * tl.exp(shifts)
        token = _kept(
            token,
            likeliest,
            best,
            tl.sum(masses.to(tl.float64), 0),
            temperature,
            logits,
            parameters,
            masks,
            row,
            count,
            words,
            VOCABULARY,
            BLOCK,
        )

    highs = tl.load(numbers + HIGH * size, mask=live, other=_NONE)
    totals = tl.load(numbers + TOTAL * size, mask=live, other=0.0)
    high = _finite(tl.max(highs, 0))
    whole = high + tl.log(tl.sum(totals * tl.exp(highs - high), 0))
    logprob = tl.max(_read(logits, masks, row, -1, words, _alone(token), VOCABULARY), 0) - whole
    found = best > _NONE
    tl.store(out + row, tl.where(found, token, -1))
    tl.store(out + count + row, tl.where(found, logprob, 0.0).to(tl.int32, bitcast=True))
    sampler = tl.load(parameters + SAMPLER * count + row)
    tl.store(kept + sampler, tl.where(found, token, -1).to(tl.int64))


@triton.jit
def _kept(
    token,
    likeliest,
    best,
    mass,
    temperature,
    logits,
    parameters,
    masks,
    row,
    count,
    words,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The race's first token that top-k, top-p and min-p keep; `mass`, float64, is the weight of
    all.

    Each round counts and weighs the tokens that are more likely than the one in question, and lets
    them race in case it is not kept. The most likely one always is.
    """
    mask = tl.load(parameters + MASK * count + row)
    top_k = tl.load(parameters + TOP_K * count + row)
    top_p = _number(parameters + TOP_P * count + row)
    floor = _number(parameters + FLOOR * count + row)
    start = _start(parameters, count, row)
    filtered = (top_k > 0) | (top_p < 1) | (floor > _NONE)
    searching = filtered & (token != likeliest)
    while searching:
        value = tl.max(_read(logits, masks, row, mask, words, _alone(token), VOCABULARY), 0)
        many = 0
        above = mass * 0
        score = _NONE
        winner = likeliest
        for first in range(0, VOCABULARY, BLOCK):
            tokens = first + tl.arange(0, BLOCK)
            values = _read(logits, masks, row, mask, words, tokens, VOCABULARY)
            over = (values > value) | ((values == value) & (tokens < token))
            here = tl.sum(over.to(tl.int32), 0)
            if here > 0:  # random numbers cost more than all else
                many += here
                scaled = tl.where(over, (values - best) / temperature, _NONE)
                above += tl.sum(tl.exp(scaled), 0).to(tl.float64)
                scores = scaled - _log_variates(start, tokens)
                highest = tl.max(scores, 0)
                if highest > score:
                    score = highest
                    winner = _first(scores == highest, tokens, VOCABULARY)
        scaled_value = (value - best) / temperature
        outside = (scaled_value < floor) | ((top_k > 0) & (many >= top_k))
        if (top_p < 1) & (outside == 0):
            # What top-k keeps weighs between these two; it is looked for if they do not decide.
            least = mass
            most = mass
            if top_k > 0:
                weight = tl.exp(scaled_value).to(tl.float64)
                least = above + weight
                most = tl.minimum(mass, above + (top_k - many) * weight)
            if (above >= top_p * least) & (above < top_p * most):
                least = _weight_of_top_k(
                    top_k,
                    many,
                    above,
                    value,
                    best,
                    temperature,
                    logits,
                    masks,
                    row,
                    mask,
                    words,
                    VOCABULARY,
                    BLOCK,
                )
            outside = above >= top_p * least
        if outside:
            token = winner
        searching = outside & (token != likeliest)
    return token


@triton.jit
def _weight_of_top_k(
    top_k,
    many,
    above,
    value,
    best,
    temperature,
    logits,
    masks,
    row,
    mask,
    words,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of exp((logit - best) / temperature) over the `top_k` most likely tokens.

    Halves the range in which the last of them lies. Fewer than `top_k`, `many` of weight `above`,
    are more likely than a token of logit `value`.
    """
    high = value
    low = best - _WEIGHTLESS * temperature
    middle = (low + high) * 0.5
    # The last condition ends it, too, where no number lies between the two.
    while (many < top_k) & (high - low > _EXACT * temperature) & (low < middle) & (middle < high):
        found = 0
        weight = above * 0
        for first in range(0, VOCABULARY, BLOCK):
            tokens = first + tl.arange(0, BLOCK)
            values = _read(logits, masks, row, mask, words, tokens, VOCABULARY)
            over = values > middle
            found += tl.sum(over.to(tl.int32), 0)
            scaled = tl.where(over, (values - best) / temperature, _NONE)
            weight += tl.sum(tl.exp(scaled), 0).to(tl.float64)
        if found > top_k:
            low = middle
        else:
            high = middle
            many = found
            above = weight
        middle = (low + high) * 0.5
    return above + (top_k - many) * tl.exp((high - best) / temperature).to(tl.float64)


@triton.jit
def _read(logits, masks, row, mask, words, tokens, VOCABULARY: tl.constexpr):
    """Some tokens' logits in a row, float32; minus infinity for what is ruled out or no number."""
    live = tokens < VOCABULARY
    values = tl.load(logits + row.to(tl.int64) * VOCABULARY + tokens, mask=live, other=_NONE)
    values = values.to(tl.float32)
    values = tl.minimum(tl.where(values == values, values, _NONE), _LARGEST)
    if mask >= 0:
        bits = tl.load(masks + mask.to(tl.int64) * words + tokens // 32, mask=live, other=0)
        values = tl.where(((bits >> (tokens % 32)) & 1) != 0, values, _NONE)
    return values


@triton.jit
def _log_variates(start, tokens):
    """Logarithms of the tokens' exponential variates: see `noise.exponentials`."""
    word = (tokens.to(tl.uint64) + 1) * _GAMMA + start
    word = (word ^ (word >> 30)) * _FIRST
    word = (word ^ (word >> 27)) * _SECOND
    bits = ((word ^ (word >> 31)) >> 32).to(tl.uint32)
    uniform = tl.minimum(bits.to(tl.float32) * 2.0**-32 + 2.0**-33, 1 - 2.0**-24)
    # -log(1 - uniform): what the subtraction rounds off is put right by the factor (Kahan).
    rest = 1.0 - uniform
    taken = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    return tl.log(tl.where(rest == 1.0, uniform, -tl.log(rest) * (uniform / taken)))


@triton.jit
def _start(parameters, count, row):
    """Where a row's random numbers start, uint64."""
    low = tl.load(parameters + START_LOW * count + row).to(tl.uint32, bitcast=True)
    high = tl.load(parameters + START_HIGH * count + row).to(tl.uint32, bitcast=True)
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _number(pointer):
    return tl.load(pointer).to(tl.float32, bitcast=True)


@triton.jit
def _finite(high):
    """The number to subtract from logits whose largest is `high`."""
    return tl.where(high > _NONE, high, 0.0)


@triton.jit
def _first(which, tokens, VOCABULARY: tl.constexpr):
    """The lowest of some ids."""
    return tl.min(tl.where(which, tokens, VOCABULARY), 0)


@triton.jit
def _alone(token):
    """One id as a block."""
    return token + tl.arange(0, 1)
