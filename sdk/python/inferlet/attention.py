"""What layers read of a context while it is generated: policies of the literature, to be given as
`context.generate(attend=attention.quest(pages=64))`.

Each is a short program of `device.attend`, to be read, changed, or put together with others. What
is not kept is not read. Prompts are read in full, and tell those that ask for it what they attend
to.
"""

from __future__ import annotations

from inferlet.device import (
    HEADS,
    PAGES,
    TOKENS,
    Attend,
    State,
    Tensor,
    attend,
    iota,
    layer,
    maximum,
    per_token,
    shared,
    step,
    tokens,
    where,
)


def sinks(first: int = 4, window: int = 1020) -> Attend:
    """The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024).

    Keys keep their positions. With `first=0` it is a sliding window.
    """

    @attend
    def program() -> Tensor:
        place = iota(TOKENS)
        return (place < first) | (place >= tokens() - window)

    return program()


def quest(pages: int, full_layers: int = 2, *, together: bool = False) -> Attend:
    """In each layer but the first, for each head the pages that its query can have the largest
    weights in (Tang et al., Quest, 2024). Heads that share keys read what one of them chooses; or
    they choose `together`, what is likely for one of them, and read as many pages as one.
    """

    @attend
    def program(scores: Tensor) -> Tensor:
        likely = shared(scores.log_softmax()) if together else scores
        return _largest(likely, PAGES, pages) | (layer() < full_layers)

    return program()


def tova(budget: int) -> Attend:
    """The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al.,
    TOVA, 2024).
    """

    @attend
    def program(weights: Tensor) -> Tensor:
        return _at(iota(TOKENS), weights.transpose().sum().top(budget))

    return program()


def h2o(heavy: int, recent: int, *, together: bool = False) -> Attend:
    """The newest tokens, and of the others for each head those with the largest sums of weights,
    those that the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads
    that share keys read what one of them keeps; or all heads of a layer choose `together`, whose
    sums take a part of the memory.
    """

    @attend(window=0)
    def program(weights: Tensor, state: State) -> Tensor:
        state.sums += weights.transpose().sum() if together else weights
        place = iota(TOKENS)
        newest = place >= tokens() - recent
        others = where(newest, -1.0, state.sums)
        if together:
            return newest | _at(place, others.top(heavy))
        return newest | _largest(others, TOKENS, heavy)

    return program(sums=per_token(0.0, by_head=not together))


def snapkv(budget: int, window: int = 32, kernel: int = 7) -> Attend:
    """The prompt's last tokens, `window` of them, for each head the tokens before that these give
    the largest weights, with those around them, `budget` of the prompt together, and all generated
    ones (Li et al., SnapKV, 2024). Heads that share keys read what one of them keeps.
    """

    @attend(window=window)
    def program(weights: Tensor) -> Tensor:
        place = iota(TOKENS)
        newest = place >= tokens() - window
        pooled, reach, behind = where(newest, 0.0, weights).transpose(), kernel // 2, 0
        while behind < reach:  # the largest of as many tokens behind each
            more = min(behind + 1, reach - behind)
            pooled, behind = maximum(pooled, pooled[place + more]), behind + more
        pooled = maximum(pooled, pooled[maximum(place - reach, 0)]).transpose()
        best = _largest(where(newest, -1.0, pooled), TOKENS, max(1, budget - window))
        # Once the prompt is over, what it has dropped stays away, and nothing else goes.
        return newest | best | (step() > 0)

    return program()


def _largest(values: Tensor, size: int, count: int) -> Tensor:
    """Where the largest of each head are, and any that are as large as the last of them."""
    behind = maximum(iota(size).max() + 1 - count, 0)
    return values >= values.sort().transpose()[behind].reshape(HEADS, 1)


def _at(place: Tensor, kept: Tensor) -> Tensor:
    """True at some places."""
    return (place < 0).scatter_max(kept, True)
