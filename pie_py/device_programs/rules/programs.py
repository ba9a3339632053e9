# Whole programs, which return the token; the last is what the fields of a sampler mean, in the
# order of their steps, that of `transformers`.


def tempered(logits, state):
    """Top-p at a temperature: `tempered(temperature=0.7, p=0.9)`; 0 takes the likeliest token."""
    return draw(top_p(cooled(logits, state.temperature), state.p))


def mirostat(logits, state):
    """Keeps the surprise at `tau` bits (Basu et al. 2021, version 2).

    `mirostat(mu=10.0, tau=5.0, rate=0.1)`; mu begins at twice tau.
    """
    surprise = -logits.log_softmax() / log(2)
    chosen = draw(logits.where((surprise <= state.mu) | (logits >= logits.max()), -inf))
    state.mu -= state.rate * (surprise[chosen] - state.tau)
    return chosen


def entropy_temperature(logits, state):
    """A lower temperature where the model is sure (Zhang et al., EDT, 2024).

    `entropy_temperature(temperature=1.0, theta=1.0)`: `temperature * 0.8 ** (theta / entropy)`.
    """
    unsure = entropy(logits.log_softmax())
    scaled = state.temperature * ((state.theta / unsure) * log(0.8)).exp()
    return where(scaled > 1e-6, draw(logits / scaled), logits.argmax())


def gumbel_watermark(logits, state):
    """Draws by a key and the newest tokens, not by chance (Aaronson and Kirchner 2022).

    `gumbel_watermark(temperature=1.0, key=42)`. The text is as likely as any, and who has the
    key recognizes it: `inferlet.watermark.gumbel_score`.
    """
    words = hash(keyed(state.key, 3), iota()) >> 40
    share = ((words & 0xFFFFFF).to_float() + 0.5) * 2.0**-24
    return (cooled(logits, state.temperature) - (-share.log()).log()).argmax()


def synthid(logits, state):
    """A tournament in 30 rounds by bits of a keyed hash (Dathathri et al., SynthID-Text, 2024).

    `synthid(temperature=1.0, key=42)`. `inferlet.watermark.synthid_score` recognizes the text.
    """
    words = hash(keyed(state.key, 4), iota())
    chances = cooled(logits, state.temperature).softmax()
    for i in range(30):
        bits = ((words >> i) & 1).to_float()
        chances = chances * (bits + 1.0 - (chances * bits).sum())
    return draw(chances.log())


def dola(logits, state, layers, *, alpha=0.1):
    """The tokens that the last layer knows and an early one does not (Chuang et al., DoLa, 2024):
    of the layers that `layers.early` keeps the one whose distribution is farthest (section 2.2),
    among tokens `alpha` times as likely as the likeliest (2.3). Early exits have the last norm.
    """
    mature = logits.log_softmax()
    farthest, premature = -1.0, mature
    for residual in layers.early:
        here = lens(residual).log_softmax()
        middle = ((mature.exp() + here.exp()) * 0.5).log()
        sides = [
            each.exp() * (each - middle).where(each.exp() > 0.0, 0.0) for each in (mature, here)
        ]
        distance = 0.5 * (sides[0] + sides[1]).sum()
        premature = where(distance > farthest, here, premature)
        farthest = maximum(distance, farthest)
    kept = mature >= mature.max() + log(alpha)
    return draw(cooled((mature - premature).where(kept, -inf), state.temperature))


def sampler(logits, state, *, fields, greedy, no_repeat_ngram_size_of=0, top_k_of=0):
    """A token, each step over what those before have left; -1 where nothing is left."""
    logits = by_text(logits, state, fields, no_repeat_ngram_size_of)
    if not greedy:
        logits = by_likelihood(logits, state, fields, top_k_of)
    token = logits.argmax() if greedy else draw(logits)
    return where(logits.max() > -inf, token, -1)
