# Rules tokens out by how likely they are.


def top_k(logits, k):
    """The `k` most likely tokens."""
    if is_constant(k):
        return only(logits, logits.top(k), True)
    return only(logits, logits.descending(), iota() < k)


def top_p(logits, p):
    """The fewest likely tokens that reach a mass."""
    return logits.where(nucleus(logits, p), -inf)


def min_p(logits, p):
    """Tokens that are at least `p` times as likely as the likeliest; and in any case this one."""
    return logits.where(logits - logits.max() >= minimum(log(p), 0.0), -inf)


def top_a(logits, a):
    """Tokens at least as likely as `a` times the square of the likeliest one's probability."""
    chances = logits.softmax()
    best = chances.max()
    return likely(logits, chances, a * best * best)


def epsilon_cutoff(logits, epsilon):
    """Tokens with a probability of at least `epsilon`; and in any case the likeliest."""
    return likely(logits, logits.softmax(), epsilon)


def eta_cutoff(logits, epsilon):
    """As `epsilon_cutoff`, less where the model is unsure (Hewitt et al. 2022)."""
    logs = logits.log_softmax()
    bar = (-entropy(logs)).exp() * sqrt(epsilon)
    return likely(logits, logs.exp(), minimum(bar, epsilon))


def typical_p(logits, p):
    """Tokens whose surprise is nearest to the expected, of a mass (Meister et al. 2022)."""
    logs = logits.log_softmax()
    distance = abs(-logs - entropy(logs))
    kept = nucleus(logits, p, by=-distance)
    return logits.where(distance <= distance.where(kept, 0.0).max(), -inf)


def tail_free(logits, z, count=256):
    """The most likely of `count` tokens, up to where their curve is flat (Phénix and Egan 2019)."""
    order = logits.top(count)
    chances = logits.softmax()[order]
    slopes = chances[:-1] - chances[1:]
    bends = abs(slopes[:-1] - slopes[1:])
    weight = (bends / bends.sum()).cumsum()
    # The first one stays, and each whose bends before it have not reached z.
    kept = (weight <= z) | (iota(count - 2) == 0)
    return only(logits, order[: count - 2], kept)


def xtc(logits, threshold, probability):
    """Sometimes without all likely tokens but the least likely of them."""
    chances = logits.softmax()
    likely = (chances >= threshold) & (chances > 0.0)
    least = (-logits).where(likely, -inf).flip().argmax()  # from the end: of equal ones the last
    out = likely & (iota() != iota().max() - least) & (uniform() < probability)
    return logits.where(~out, -inf)


def top_n_sigma(logits, n):
    """Logits within `n` standard deviations of the largest (Tang et al. 2024)."""
    there = logits > -inf
    count = there.to_float().sum()
    mean = logits.where(there, 0.0).sum() / count
    off = (logits - mean).where(there, 0.0)
    return logits.where(logits >= logits.max() - (off * off).sum().sqrt() / count.sqrt() * n, -inf)


def by_likelihood(logits, state, fields, top_k_of):
    """The steps of a sampler's fields from the temperature on."""
    if "temperature" in fields:
        logits = logits / state.temperature
    if "top_k" in fields:
        logits = top_k(logits, top_k_of if top_k_of else state.top_k)
    if "top_p" in fields:
        logits = top_p(logits, state.top_p)
    if "min_p" in fields:
        logits = min_p(logits, state.min_p)
    if "top_n_sigma" in fields:
        logits = top_n_sigma(logits, state.top_n_sigma)
    if "typical_p" in fields:
        logits = typical_p(logits, state.typical_p)
    if "epsilon_cutoff" in fields:
        logits = epsilon_cutoff(logits, state.epsilon_cutoff)
    if "eta_cutoff" in fields:
        logits = eta_cutoff(logits, state.eta_cutoff)
    if "xtc_probability" in fields:
        logits = xtc(logits, state.xtc_threshold, state.xtc_probability)
    return logits
