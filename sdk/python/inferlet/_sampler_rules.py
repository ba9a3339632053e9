# Generated from pie_py/device_programs/rules by `python -m codegen`; do not edit.
"""Rules for choosing tokens: what `inferlet.samplers` has beside whole programs."""

from __future__ import annotations

from typing import Any

from inferlet._device_words import Tensor, _word

__all__ = ['allowed_tokens', 'banned_sequences', 'context_aware', 'contrastive', 'dry', 'epsilon_cutoff', 'eta_cutoff', 'frequency_penalty', 'guidance', 'healed', 'logit_bias', 'min_p', 'min_tokens', 'no_repeat_ngram', 'presence_penalty', 'repetition_penalty', 'tail_free', 'top_a', 'top_k', 'top_n_sigma', 'top_p', 'typical_p', 'watermark', 'xtc']


def top_k(logits: Tensor, k: Any) -> Tensor:
    """The `k` most likely tokens."""
    _word()


def top_p(logits: Tensor, p: Any) -> Tensor:
    """The fewest likely tokens that reach a mass."""
    _word()


def min_p(logits: Tensor, p: Any) -> Tensor:
    """Tokens that are at least `p` times as likely as the likeliest."""
    _word()


def top_a(logits: Tensor, a: Any) -> Tensor:
    """Tokens at least as likely as `a` times the square of the likeliest one's probability."""
    _word()


def epsilon_cutoff(logits: Tensor, epsilon: Any) -> Tensor:
    """Tokens with a probability of at least `epsilon`; and in any case the likeliest."""
    _word()


def eta_cutoff(logits: Tensor, epsilon: Any) -> Tensor:
    """As `epsilon_cutoff`, less where the model is unsure (Hewitt et al. 2022)."""
    _word()


def typical_p(logits: Tensor, p: Any) -> Tensor:
    """Tokens whose surprise is nearest to the expected, of a mass (Meister et al. 2022)."""
    _word()


def tail_free(logits: Tensor, z: Any, count: Any=256) -> Tensor:
    """The most likely of `count` tokens, up to where their curve is flat (Phénix and Egan 2019)."""
    _word()


def xtc(logits: Tensor, threshold: Any, probability: Any) -> Tensor:
    """Sometimes without all likely tokens but the least likely of them."""
    _word()


def top_n_sigma(logits: Tensor, n: Any) -> Tensor:
    """Logits within `n` standard deviations of the largest (Tang et al. 2024)."""
    _word()


def repetition_penalty(logits: Tensor, factor: Any) -> Tensor:
    """Of a token that occurs, a logit above 0 is divided, one below multiplied (CTRL, 2019)."""
    _word()


def presence_penalty(logits: Tensor, penalty: Any) -> Tensor:
    """Taken off tokens that were generated, once."""
    _word()


def frequency_penalty(logits: Tensor, penalty: Any) -> Tensor:
    """Taken off tokens that were generated, each time."""
    _word()


def no_repeat_ngram(logits: Tensor, size: Any, look_back: Any=1024) -> Tensor:
    """No sequence of `size` tokens comes twice."""
    _word()


def banned_sequences(logits: Tensor, sequences: Any) -> Tensor:
    """None of some sequences of tokens comes as a whole: lists of one length, with -1 before the
    shorter ones, of the state.
    """
    _word()


def dry(logits: Tensor, multiplier: Any, base: Any=1.75, allowed: Any=2, breakers: Any=None, look_back: Any=1024) -> Tensor:
    """Less likely what goes on with a repetition of n tokens, by `multiplier * base ** (n -
    allowed)`. A repetition ends at the breakers: a list, of the state.
    """
    _word()


def watermark(logits: Tensor, bias: Any, share: Any=0.5, key: Any=0) -> Tensor:
    """Likelier what a hash of the token before favours (Kirchenbauer et al. 2023).

    `inferlet.watermark` recognizes the text.
    """
    _word()


def logit_bias(logits: Tensor, tokens: Any, values: Any) -> Tensor:
    """Values added to tokens' logits: lists of the same length, of the state."""
    _word()


def allowed_tokens(logits: Tensor, tokens: Any) -> Tensor:
    """None but some tokens: a list, of the state."""
    _word()


def min_tokens(logits: Tensor, count: Any, ends: Any) -> Tensor:
    """Not one of the tokens that end the text before `count` were chosen."""
    _word()


def healed(logits: Tensor, tokens: Any) -> Tensor:
    """Token healing: the first token is one of some, those that begin with what was cut off."""
    _word()


def guidance(logits: Tensor, other: Tensor, scale: Any) -> Tensor:
    """So many times as far from a text without the prompt (Sanchez et al. 2023)."""
    _word()


def contrastive(logits: Tensor, other: Tensor, share: Any=0.1) -> Tensor:
    """What a weaker model finds unlikely, of tokens with a share of the likeliest's probability (Li
    et al. 2023).
    """
    _word()


def context_aware(logits: Tensor, other: Tensor, alpha: Any) -> Tensor:
    """What a document makes likelier than the same text without it says (Shi et al. 2024)."""
    _word()
