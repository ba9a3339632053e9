# Generated from pie_py/wire/operations.py by `python -m pie_py.build.generate`; do not edit.
"""The parameters of a sampler that the server has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerParameters:
    """The parameters of the steps, in their order.

    Attributes:
        plausibility: share of the most likely token's own probability that a token needs.
        mix: weights of the own logits, and of those of `mix-logits`: guidance is [s, 1 -
            s], contrastive decoding [1, -1].
        logit_bias: token ids to what is added to their logits; null rules a token out.
        allowed_tokens: token ids; all others are ruled out.
        repetition_penalty: of tokens given and generated, a logit above 0 is divided by it,
            one below multiplied.
        presence_penalty: taken off tokens generated, once.
        frequency_penalty: taken off tokens generated, each time.
        no_repeat_ngram_size: no sequence of so many tokens comes twice.
        banned_sequences: lists of token ids, 64 at most in each, that do not come as a
            whole.
        min_tokens: so many tokens are chosen before `end_tokens`.
        end_tokens: token ids that end the text.
        dry_multiplier: `multiplier * base ** (n - allowed_length)` is taken off a token
            that goes on with a repetition of n tokens, 64 at most.
        dry_base: the base of this power.
        dry_allowed_length: tokens that may be repeated.
        dry_sequence_breakers: token ids at which a repetition ends.
        watermark_bias: added to the tokens that a SplitMix64 hash of the key and the token
            before favours.
        watermark_share: share of the tokens that the hash favours.
        watermark_key: of the hash, below 2^48.
        temperature: divides the logits; 0 takes the most likely token of what is left, and
            ends the steps.
        top_k: so many of the most likely tokens; 0 is all.
        top_p: the fewest likely tokens that reach this mass.
        min_p: share of the most likely token's probability that a token needs.
        typical_p: mass of the tokens whose surprise is nearest to the expected (Meister et
            al. 2022).
        epsilon_cutoff: probability that a token needs.
        eta_cutoff: the same, lower where the model is unsure (Hewitt et al. 2022).
        xtc_threshold: probability from which on a token is likely to XTC.
        xtc_probability: how often XTC rules out all likely tokens but the least likely of
            them.
    """

    plausibility: float = 0.0
    mix: Sequence[float] = (1.0,)
    logit_bias: Mapping[int, float | None] = field(default_factory=dict)
    allowed_tokens: Sequence[int] | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    banned_sequences: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    end_tokens: Sequence[int] = ()
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: Sequence[int] = ()
    watermark_bias: float = 0.0
    watermark_share: float = 0.5
    watermark_key: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_threshold: float = 0.1
    xtc_probability: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether a step counts the tokens of the context."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def looks_back(self) -> bool:
        """Whether a step looks back at the tokens of the context."""
        return (
            self.counts
            or self.no_repeat_ngram_size != 0
            or bool(self.banned_sequences)
            or self.dry_multiplier != 0.0
            or self.watermark_bias != 0.0
        )
