# What layers read: policies of the stage `attend`, whose numbers are constants. `window` says how
# many of a prompt's last inputs they take the weights of, 0 for all.


def sinks(*, first=4, window=1020):
    """The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024).

    Keys keep their positions. With `first=0` it is a sliding window.
    """
    place = iota(TOKENS)
    return (place < first) | (place >= tokens() - window)


def quest(scores, *, pages, full_layers=2, together=False):
    """In each layer but the first, for each head the pages that its query can have the largest
    weights in (Tang et al., Quest, 2024). Heads that share keys read what one of them chooses; or
    they choose `together`, what is likely for one of them, and read as many pages as one.
    """
    likely = shared(scores.log_softmax()) if together else scores
    return largest(likely, PAGES, pages) | (layer() < full_layers)


def tova(weights, *, budget):
    """The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al.,
    TOVA, 2024).
    """
    return at(iota(TOKENS), weights.transpose().sum().top(budget))


def h2o(weights, state, *, heavy, recent, together=False, window=0):
    """The newest tokens, and of the others for each head those with the largest sums of weights,
    those that the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads
    that share keys read what one of them keeps; or all heads of a layer choose `together`, whose
    sums take a part of the memory.
    """
    state.sums += weights.transpose().sum() if together else weights
    place = iota(TOKENS)
    newest = place >= tokens() - recent
    others = where(newest, -1.0, state.sums)
    if together:
        return newest | at(place, others.top(heavy))
    return newest | largest(others, TOKENS, heavy)


def snapkv(weights, *, budget, window=32, kernel=7):
    """The prompt's last tokens, `window` of them, for each head the tokens before that these give
    the largest weights, with those around them, `budget` of the prompt together, and all generated
    ones (Li et al., SnapKV, 2024). Heads that share keys read what one of them keeps.
    """
    place = iota(TOKENS)
    newest = place >= tokens() - window
    pooled, reach, behind = where(newest, 0.0, weights).transpose(), kernel // 2, 0
    while behind < reach:  # the largest of as many tokens behind each
        more = min(behind + 1, reach - behind)
        pooled, behind = maximum(pooled, pooled[place + more]), behind + more
    pooled = maximum(pooled, pooled[maximum(place - reach, 0)]).transpose()
    best = largest(where(newest, -1.0, pooled), TOKENS, max(1, budget - window))
    # Once the prompt is over, what it has dropped stays away, and nothing else goes.
    return newest | best | (step() > 0)
