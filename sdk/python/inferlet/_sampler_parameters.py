# Generated from pie_py/device_programs/fields.py by `python -m codegen`; do not edit.
"""The parameters of a sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class Parameters(TypedDict, total=False):
    """How the server chooses a token, among the whole vocabulary.

    The steps go in the order of the parameters, that of `transformers`; each looks at what those
    before have left. A grammar or mask comes before them.

    Attributes:
        logit_bias: token ids to what is added to their logits; None rules a token out.
        allowed_tokens: token ids; all others are ruled out.
        repetition_penalty: of tokens given and generated, a logit above 0 is divided by it, one
            below multiplied.
        presence_penalty: taken off tokens generated, once.
        frequency_penalty: taken off tokens generated, each time.
        no_repeat_ngram_size: no sequence of so many tokens comes twice.
        banned_sequences: lists of token ids that do not come as a whole.
        min_tokens: so many tokens are chosen before `end_tokens`.
        end_tokens: token ids that end the text.
        dry_multiplier: `multiplier * base ** (n - allowed_length)` is taken off a token that
            goes on with a repetition of n tokens, 64 at most, among the newest 1 024.
        dry_base: the base of this power.
        dry_allowed_length: tokens that may be repeated.
        dry_sequence_breakers: token ids at which a repetition ends.
        temperature: divides the logits; 0 takes the most likely token of what is left, and ends
            the steps.
        top_k: so many of the most likely tokens; 0 is all.
        top_p: the fewest likely tokens that reach this mass.
        min_p: share of the most likely token's probability that a token needs.
        top_n_sigma: tokens whose logit is within so many standard deviations of the largest.
        typical_p: mass of the tokens whose surprise is nearest to the expected.
        epsilon_cutoff: probability that a token needs.
        eta_cutoff: the same, lower where the model is unsure.
        xtc_probability: how often XTC rules out all likely tokens but the least likely of them.
        xtc_threshold: probability from which on a token is likely to XTC.
        logprobs: number of most likely tokens that each step reports as well.
        seed: same seed (modulo 2^64), same tokens; without one the server draws it.
    """

    logit_bias: Mapping[int, float | None]
    allowed_tokens: Sequence[int] | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    banned_sequences: Sequence[Sequence[int]]
    min_tokens: int
    end_tokens: Sequence[int]
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_sequence_breakers: Sequence[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    xtc_probability: float
    xtc_threshold: float
    logprobs: int
    seed: int | None
