# Programs in the layers, of the literature: `residual` is what a layer would be given.


def steer(residual, state, *, strength=1.0):
    """Adds a vector to the residual stream (Turner et al., Activation Addition, 2023, section 3;
    Rimsky et al., Contrastive Activation Addition, 2024, section 3).
    """
    return residual + strength * state.vector


def ablate(residual, state):
    """Takes a direction, of any length, out of the residual stream (Arditi et al., Refusal in
    Language Models Is Mediated by a Single Direction, 2024, section 2.4).
    """
    unit = state.direction / (state.direction * state.direction).sum().sqrt()
    return residual - (residual * unit).sum() * unit


def probe(residual, state):
    """Keeps the scores of linear classifiers (Alain and Bengio, Understanding Intermediate Layers
    Using Linear Classifier Probes, 2016, section 3): of the newest token, and the sums of all.
    """
    state.scores = state.weights @ residual + state.bias
    state.sums += state.scores
    return residual


def logit_lens(residual, state, *, at):
    """Keeps the token that is likeliest by each of some layers, and its log-probability, after the
    last norm and the head (nostalgebraist, Interpreting GPT: The Logit Lens, 2020; Belrose et al.,
    Tuned Lens, 2023, section 2).
    """
    logprobs = lens(residual).log_softmax()
    place = place_among(at)
    token = logprobs.argmax()
    state.tokens = state.tokens.with_at(place, token)
    state.logprobs = state.logprobs.with_at(place, logprobs[token])
    return residual


def early(residual, state, *, at):
    """Keeps the residual stream before each of some layers, for a sampler that looks at them."""
    here = (iota(len(at)) == place_among(at)).reshape(len(at), 1)
    state.early = where(here, residual, state.early)
    return residual
