# What the fields of a sampler mean, in the order of their steps, that of `transformers`.


def sampler(logits, state, *, fields, greedy, no_repeat_ngram_size_of=0, top_k_of=0):
    """A token, each step over what those before have left; -1 where nothing is left."""
    logits = by_text(logits, state, fields, no_repeat_ngram_size_of)
    if not greedy:
        logits = by_likelihood(logits, state, fields, top_k_of)
    token = logits.argmax() if greedy else draw(logits)
    return where(logits.max() > -inf, token, -1)
