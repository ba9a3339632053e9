# What the rules are put together of.


def only(logits, places, kept):
    """The logits at places that are kept; the rest is ruled out."""
    return logits.where(nothing().scatter_max(places, kept), -inf)


def without(logits, places, banned):
    """The logits but at places that are banned."""
    return logits.where(~nothing().scatter_max(places, banned), -inf)


def nothing():
    """False for each token."""
    return iota() < 0


def likely(logits, chances, bar):
    """The tokens that are at least as likely as a bar, and in any case the likeliest."""
    return logits.where((chances >= bar) | (logits >= logits.max()), -inf)


def entropy(logs):
    """The entropy in nats of log-probabilities."""
    return -(logs.exp() * maximum(logs, -1e30)).sum()  # 0 of what is ruled out


def repeated(most, look_back, breakers=None):
    """The newest tokens `[look_back]`, and how many before each, `most` at most, are the text's
    last ones. A repetition ends at the breakers.
    """
    text = newest(look_back + most)
    tokens = text[most:]
    if breakers is not None:
        text = where(nothing().scatter_max(breakers, True)[text], -1, text)
    return tokens, repeats(text, most)[most:]


def cooled(logits, temperature):
    """The logits at a temperature; at 0 only the likeliest is left."""
    kept = (temperature > 1e-6) | (iota() == logits.argmax())
    return (logits / maximum(temperature, 1e-6)).where(kept, -inf)


def keyed(key, count):
    """A hash of a key and the newest tokens, int."""
    for token in newest(count):
        key = hash(key, token)
    return key


def largest(values, size, count):
    """Where the largest of each head are, and any that are as large as the last of them."""
    behind = maximum(iota(size).max() + 1 - count, 0)
    return values >= values.sort().transpose()[behind].reshape(HEADS, 1)


def at(place, kept):
    """True at some places."""
    return (place < 0).scatter_max(kept, True)


def place_among(layers):
    """Where this layer is among some."""
    place = 0
    for i in range(len(layers)):
        place += (layer() == layers[i]).to_int() * i
    return place
