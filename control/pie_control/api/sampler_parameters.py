"""Parameters of a sampler, as an inferlet gives them: one JSON object, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pie_control.errors import ApiError
from pie_py.wire.operations import (
    CHOICE,
    COUNTING,
    DEFAULT_ORDER,
    LOOKING_BACK,
    MATCH,
    OTHERS,
    Operation,
    Step,
)

MAX_TEXT = 1 << 20  # characters of the JSON
# Most generations have one of a few texts, which take longer to read than all else about a sampler.
_MOST_REMEMBERED = 256
_REMEMBERED_TEXT = 512  # characters of the longest one
MAX_BIASES = 4096
MAX_TOP = 256
MAX_BREAKERS = 256
_LARGEST = 1e4  # of numbers that have no natural end: far from where float32 loses its grip
_HALF_KEY = (1 << 24) - 1  # bits that a float32 holds

_Amount = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
_Positive = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Labels = {operation.label: operation for operation in Operation}

_Making: TypeAlias = "Callable[[SamplerParameters], Step | None]"


class SamplerParameters(BaseModel):
    """What a sampler does, with the names that others use, too."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    temperature: _Positive = 1.0  # 0: greedy
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0  # 0: all
    top_p: _Share = 1.0
    min_p: _Share = 0.0
    typical_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    epsilon_cutoff: _Share = 0.0
    eta_cutoff: _Share = 0.0
    xtc_probability: _Share = 0.0
    xtc_threshold: _Share = 0.1
    repetition_penalty: Annotated[
        float, Field(ge=1 / _LARGEST, le=_LARGEST, allow_inf_nan=False)
    ] = 1.0
    presence_penalty: _Amount = 0.0
    frequency_penalty: _Amount = 0.0
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MATCH)] = 0
    dry_multiplier: _Positive = 0.0
    dry_base: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.75
    dry_allowed_length: Annotated[int, Field(ge=0, le=MATCH)] = 2
    dry_sequence_breakers: Annotated[list[_Token], Field(max_length=MAX_BREAKERS)] = []
    watermark_bias: _Amount = 0.0
    watermark_share: _Share = 0.5
    watermark_key: Annotated[int, Field(ge=0, lt=2**48)] = 0
    mix: Annotated[list[_Amount], Field(min_length=1, max_length=1 + OTHERS)] = [1.0]
    plausibility: _Share = 0.0
    logit_bias: Annotated[dict[str, float | None], Field(max_length=MAX_BIASES)] = {}
    allowed_tokens: Annotated[list[_Token], Field(min_length=1)] | None = None
    order: list[str] = [operation.label for operation in DEFAULT_ORDER]
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = (
        0  # most likely tokens reported with each sample
    )

    @field_validator("order")
    @classmethod
    def _steps_are_known(cls, order: list[str]) -> list[str]:
        for label in order:
            if label not in _Labels:
                raise ValueError(f"{label!r} is no step; there are {', '.join(_Labels)}")
        if len(set(order)) < len(order):
            raise ValueError("a step is named twice")
        return order

    @field_validator("logit_bias")
    @classmethod
    def _biases_are_numbers(cls, biases: dict[str, float | None]) -> dict[str, float | None]:
        for token, bias in biases.items():
            if not (token.isascii() and token.isdigit() and (token == "0" or token[0] != "0")):
                raise ValueError(f"{token!r} is no token id")
            if bias is None or bias == -math.inf:
                continue
            if not math.isfinite(bias) or abs(bias) > _LARGEST:
                raise ValueError(
                    f"{bias} for token {token}; within ±{_LARGEST:g}, or null to rule it out"
                )
        return biases

    def step(self, operation: Operation) -> Step | None:
        """An operation with its arguments; None if it would change nothing."""
        return _STEPS[operation](self)


def _number(operation: Operation, nothing: float) -> _Making:
    """Makes the step of a parameter that is called as the operation is."""

    def make(parameters: SamplerParameters) -> Step | None:
        value = getattr(parameters, operation.label)
        return None if value == nothing else Step(operation, [value])

    return make


def _mix(p: SamplerParameters) -> Step | None:
    if p.mix == [1.0] and not p.plausibility:
        return None
    return Step(Operation.MIX, [p.mix[0], p.plausibility, *p.mix[1:]])


def _logit_bias(p: SamplerParameters) -> Step | None:
    biases = {int(t): -math.inf if bias is None else bias for t, bias in p.logit_bias.items()}
    return Step(Operation.LOGIT_BIAS, (), biases) if biases else None


def _allowed_tokens(p: SamplerParameters) -> Step | None:
    if p.allowed_tokens is None:
        return None
    return Step(Operation.ALLOWED_TOKENS, (), dict.fromkeys(p.allowed_tokens, 0.0))


def _no_repeat_ngram(p: SamplerParameters) -> Step | None:
    size = p.no_repeat_ngram_size
    return Step(Operation.NO_REPEAT_NGRAM, [size]) if size else None


def _dry(p: SamplerParameters) -> Step | None:
    numbers = [p.dry_multiplier, p.dry_base, p.dry_allowed_length]
    breakers = dict.fromkeys(p.dry_sequence_breakers, 0.0)
    return Step(Operation.DRY, numbers, breakers) if p.dry_multiplier else None


def _watermark(p: SamplerParameters) -> Step | None:
    key = p.watermark_key & _HALF_KEY, p.watermark_key >> 24
    numbers = [p.watermark_bias, p.watermark_share, *key]
    return Step(Operation.WATERMARK, numbers) if p.watermark_bias else None


def _xtc(p: SamplerParameters) -> Step | None:
    numbers = [p.xtc_threshold, p.xtc_probability]
    return Step(Operation.XTC, numbers) if p.xtc_probability else None


_STEPS: dict[Operation, _Making] = {
    Operation.MIX: _mix,
    Operation.LOGIT_BIAS: _logit_bias,
    Operation.ALLOWED_TOKENS: _allowed_tokens,
    Operation.REPETITION_PENALTY: _number(Operation.REPETITION_PENALTY, 1),
    Operation.PRESENCE_PENALTY: _number(Operation.PRESENCE_PENALTY, 0),
    Operation.FREQUENCY_PENALTY: _number(Operation.FREQUENCY_PENALTY, 0),
    Operation.NO_REPEAT_NGRAM: _no_repeat_ngram,
    Operation.DRY: _dry,
    Operation.WATERMARK: _watermark,
    Operation.MASK: lambda p: Step(Operation.MASK),
    Operation.TEMPERATURE: _number(Operation.TEMPERATURE, 1),
    Operation.TOP_K: _number(Operation.TOP_K, 0),
    Operation.TOP_P: _number(Operation.TOP_P, 1),
    Operation.MIN_P: _number(Operation.MIN_P, 0),
    Operation.TYPICAL_P: _number(Operation.TYPICAL_P, 1),
    Operation.EPSILON_CUTOFF: _number(Operation.EPSILON_CUTOFF, 0),
    Operation.ETA_CUTOFF: _number(Operation.ETA_CUTOFF, 0),
    Operation.XTC: _xtc,
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """Parameters as the worker carries them out: operations, and then the choice."""

    steps: list[Step]
    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @property
    def numbers(self) -> list[float]:
        """Of the choice, `[3]`."""
        return [self.temperature, self.top_p, self.min_p]

    @property
    def remembers(self) -> bool:
        """Whether an operation needs to know which tokens there have been."""
        return any(step.operation in COUNTING | LOOKING_BACK for step in self.steps)

    @property
    def mixes(self) -> int:
        """Other logits that each choice mixes in."""
        first = [step for step in self.steps if step.operation is Operation.MIX]
        return len(first[0].arguments) - 2 if first else 0


def _compiled(parameters: SamplerParameters) -> Compiled:
    """The operations in their order. What the choice does as well, at the end, is left to it.

    Raises:
        ApiError: `invalid-argument`: the order does not name a step that has parameters.
    """
    order = [_Labels[label] for label in parameters.order]
    for operation in set(Operation) - {Operation.MASK, *order}:
        if parameters.step(operation) is not None:
            raise ApiError(
                "invalid-argument",
                f"sampler parameters: order: {operation.label} has parameters and is not named",
            )
    steps = [step for operation in order if (step := parameters.step(operation))]
    greedy = [i for i, s in enumerate(steps) if s.operation is Operation.TEMPERATURE]
    if parameters.temperature == 0:
        del steps[greedy[0] :]  # the most likely token of what is left
    last: dict[Operation, float] = {}
    choice = list(CHOICE)
    while steps and steps[-1].operation in choice:
        step = steps.pop()
        last[step.operation] = step.arguments[0]
        del choice[choice.index(step.operation) :]
    while steps and steps[-1].operation is Operation.MASK:  # which comes before the choice anyhow
        steps.pop()
    return Compiled(
        steps,
        0.0 if parameters.temperature == 0 else last.get(Operation.TEMPERATURE, 1.0),
        int(last.get(Operation.TOP_K, 0)),
        last.get(Operation.TOP_P, 1.0),
        last.get(Operation.MIN_P, 0.0),
    )


def read_parameters(text: str, vocabulary: int) -> tuple[SamplerParameters, Compiled]:
    """Parameters, and the operations that they stand for; both are not to be changed.

    Args:
        text: a JSON object; an empty text is an empty object.
        vocabulary: number of tokens.

    Raises:
        ApiError: `invalid-argument`, naming the parameter.
    """
    read = _read if len(text) > _REMEMBERED_TEXT else _remembered
    return read(text, vocabulary)


def _read(text: str, vocabulary: int) -> tuple[SamplerParameters, Compiled]:
    parameters = _parse(text, vocabulary)
    return parameters, _compiled(parameters)


_remembered = lru_cache(_MOST_REMEMBERED)(_read)


def _parse(text: str, vocabulary: int) -> SamplerParameters:
    if len(text) > MAX_TEXT:
        raise ApiError(
            "invalid-argument", f"sampler parameters of {len(text)} characters; {MAX_TEXT} at most"
        )
    try:
        parameters = SamplerParameters.model_validate_json(text or "{}")
    except ValidationError as error:
        raise ApiError("invalid-argument", f"sampler parameters: {_explain(error)}") from None
    named = {
        "logit_bias": parameters.logit_bias,
        "allowed_tokens": parameters.allowed_tokens or (),
        "dry_sequence_breakers": parameters.dry_sequence_breakers,
    }
    for name, tokens in named.items():
        for token in tokens:
            if len(str(token)) > 10 or int(token) >= vocabulary:
                raise ApiError(
                    "invalid-argument",
                    f"sampler parameters: {name}: token {token} is outside the vocabulary"
                    f" (0 to {vocabulary - 1})",
                )
    return parameters


def _explain(error: ValidationError) -> str:
    parts = []
    for fault in error.errors(include_url=False, include_context=False)[:3]:
        place = ".".join(str(part) for part in fault["loc"])
        given = repr(fault["input"])[:60]
        message = fault["msg"].removeprefix("Value error, ")
        parts.append(f"{place}: {message} (given: {given})" if place else message)
    return "; ".join(parts)
