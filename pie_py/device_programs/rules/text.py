# Rules that look at the text so far, at what is asked for by token, and at what a context beside
# says as well, `beside(0)`.


def repetition_penalty(logits, factor):
    """Of a token that occurs, a logit above 0 is divided, one below multiplied (CTRL, 2019)."""
    less = where(logits > 0.0, logits / factor, logits * factor)
    return less.where((counts() > 0) | given(), logits)


def presence_penalty(logits, penalty):
    """Taken off tokens that were generated, once."""
    return logits - (counts() > 0).to_float() * penalty


def frequency_penalty(logits, penalty):
    """Taken off tokens that were generated, each time."""
    return logits - counts().to_float() * penalty


def no_repeat_ngram(logits, size, look_back=1024):
    """No sequence of `size` tokens comes twice."""
    tokens, lengths = repeated(size - 1, look_back)
    return without(logits, tokens, (lengths >= size - 1) & (tokens >= 0))


def banned_sequences(logits, sequences):
    """None of some sequences of tokens comes as a whole: lists of one length, with -1 before the
    shorter ones, of the state.
    """
    size = sequences.shape[1]
    last = sequences.transpose()[size - 1]
    follows = last >= 0
    if size > 1:
        before = sequences[: size - 1]
        follows = follows & ((before == newest(size - 1)) | (before < 0)).all()
    return without(logits, last, follows)


def dry(logits, multiplier, base=1.75, allowed=2, breakers=None, look_back=1024):
    """Less likely what goes on with a repetition of n tokens, by `multiplier * base ** (n -
    allowed)`. A repetition ends at the breakers: a list, of the state.
    """
    tokens, lengths = repeated(64, look_back, breakers)
    excess = (lengths - allowed).to_float()
    penalty = where((lengths >= allowed) & (lengths > 0), base**excess * multiplier, 0.0)
    return logits - (iota() * 0).to_float().scatter_max(tokens, penalty)


def watermark(logits, bias, share=0.5, key=0):
    """Likelier what a hash of the token before favours (Kirchenbauer et al. 2023).

    `inferlet.watermark` recognizes the text.
    """
    before = newest(1)[0]
    drawn = (hash(hash(key + before * 0, before), iota()) >> 40) & 0xFFFFFF
    green = (drawn.to_float() < share * 2.0**24) & (before >= 0)
    return logits + green.to_float() * bias


def logit_bias(logits, tokens, values):
    """Values added to tokens' logits: lists of the same length, of the state."""
    return logits.scatter_add(tokens, values)


def allowed_tokens(logits, tokens):
    """None but some tokens: a list, of the state."""
    return only(logits, tokens, True)


def min_tokens(logits, count, ends):
    """Not one of the tokens that end the text before `count` were chosen."""
    early = (step() < count) & nothing().scatter_max(ends, True)
    return logits.where(~early, -inf)


def healed(logits, tokens):
    """Token healing: the first token is one of some, those that begin with what was cut off."""
    return where(step() == 0, allowed_tokens(logits, tokens), logits)


def by_text(logits, state, fields, size):
    """The steps of a sampler's fields before the temperature."""
    if "logit_bias" in fields:
        logits = logit_bias(logits, state.logit_bias, state.logit_biases)
    if "allowed_tokens" in fields:
        logits = allowed_tokens(logits, state.allowed_tokens)
    if "repetition_penalty" in fields:
        logits = repetition_penalty(logits, state.repetition_penalty)
    if "presence_penalty" in fields:
        logits = presence_penalty(logits, state.presence_penalty)
    if "frequency_penalty" in fields:
        logits = frequency_penalty(logits, state.frequency_penalty)
    if "no_repeat_ngram_size" in fields:
        # As far back as the server remembers, in a value of 65 536 elements at most.
        logits = no_repeat_ngram(logits, size, min(4097 - size, 65536 // size))
    if "banned_sequences" in fields:
        logits = banned_sequences(logits, state.banned_sequences)
    if "min_tokens" in fields:
        logits = min_tokens(logits, state.min_tokens, state.end_tokens)
    if "dry_multiplier" in fields:
        breakers = state.dry_sequence_breakers if "dry_sequence_breakers" in fields else None
        base, allowed = state.dry_base, state.dry_allowed_length
        logits = dry(logits, state.dry_multiplier, base, allowed, breakers)
    return logits


def guidance(logits, other, scale):
    """So many times as far from a text without the prompt (Sanchez et al. 2023)."""
    without = other.log_softmax()
    return without + (logits.log_softmax() - without) * scale


def contrastive(logits, other, share=0.1):
    """The tokens with a share of the likeliest's probability that a weaker model finds unlikely (Li
    et al. 2023).
    """
    return min_p(logits, share) - other.log_softmax()


def context_aware(logits, other, alpha):
    """The tokens that a document makes likelier than a text without it does (Shi et al. 2024)."""
    return logits * (alpha + 1.0) - other * alpha
