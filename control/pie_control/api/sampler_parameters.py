"""Parameters of a sampler, as an inferlet gives them: one JSON object, checked."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pie_control.errors import ApiError

MAX_TEXT = 1 << 20  # characters of the JSON
MAX_BIASES = 4096
MAX_TOP = 256
_LARGEST = 1e4  # of numbers that have no natural end: far from where float32 loses its grip

_Amount = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class SamplerParameters(BaseModel):
    """What a sampler does, with the names that others use, too."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    temperature: Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)] = 1.0  # 0: greedy
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0  # 0: all
    top_p: _Share = 1.0
    min_p: _Share = 0.0
    repetition_penalty: Annotated[
        float, Field(ge=1 / _LARGEST, le=_LARGEST, allow_inf_nan=False)
    ] = 1.0
    presence_penalty: _Amount = 0.0
    frequency_penalty: _Amount = 0.0
    logit_bias: Annotated[dict[str, float | None], Field(max_length=MAX_BIASES)] = {}
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = (
        0  # most likely tokens reported with each sample
    )

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

    @property
    def counts(self) -> bool:
        """Whether penalties need to know which tokens there have been."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def numbers(self) -> list[float]:
        """As the worker wants them: `[6]`."""
        return [
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
        ]


def parse_parameters(text: str, vocabulary: int) -> SamplerParameters:
    """Reads parameters.

    Args:
        text: a JSON object; an empty text is an empty object.
        vocabulary: number of tokens.

    Raises:
        ApiError: `invalid-argument`, naming the parameter.
    """
    if len(text) > MAX_TEXT:
        raise ApiError(
            "invalid-argument", f"sampler parameters of {len(text)} characters; {MAX_TEXT} at most"
        )
    try:
        parameters = SamplerParameters.model_validate_json(text or "{}")
    except ValidationError as error:
        raise ApiError("invalid-argument", f"sampler parameters: {_explain(error)}") from None
    for token in parameters.logit_bias:
        if len(token) > 10 or int(token) >= vocabulary:
            raise ApiError(
                "invalid-argument",
                f"sampler parameters: logit_bias: token {token} is outside the vocabulary"
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
