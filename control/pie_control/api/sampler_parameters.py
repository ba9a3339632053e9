"""Parameters of a sampler, as an inferlet gives them: one JSON object, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
)

from pie_control.errors import ApiError
from pie_py.wire.operations import (
    ALL_PARAMETERS,
    CHOICE,
    COUNTING,
    DEFAULT_ORDER,
    LARGEST,
    Kind,
    Operation,
    Parameter,
    Step,
    step,
)

MAX_TEXT = 1 << 20  # characters of the JSON
# Most generations have one of a few texts, which take longer to read than all else about a sampler.
_MOST_REMEMBERED = 256
_REMEMBERED_TEXT = 512  # characters of the longest one
MAX_TOP = 256

_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Labels = {operation.label: operation for operation in Operation}


def _biases_are_numbers(biases: dict[str, float | None]) -> dict[str, float | None]:
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and (token == "0" or token[0] != "0")):
            raise ValueError(f"{token!r} is no token id")
        if bias is None or bias == -math.inf:
            continue
        if not math.isfinite(bias) or abs(bias) > LARGEST:
            raise ValueError(
                f"{bias} for token {token}; within ±{LARGEST:g}, or null to rule it out"
            )
    return biases


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """The type, with its bounds, and the default of a parameter."""
    default, most = parameter.default, parameter.most
    longest = None if math.isinf(most) else int(most)
    kind: Any
    match parameter.kind:
        case Kind.NUMBER:
            kind = Annotated[float, Field(ge=parameter.least, le=most, allow_inf_nan=False)]
        case Kind.COUNT:
            kind = Annotated[int, Field(ge=int(parameter.least), le=int(most))]
        case Kind.TOKENS:
            kind = Annotated[list[_Token], Field(min_length=1, max_length=longest)] | None
        case Kind.BIASES:
            kind = Annotated[
                dict[str, float | None],
                Field(max_length=longest),
                AfterValidator(_biases_are_numbers),
            ]
    return kind, default


class SamplerParameters(BaseModel):
    """What every sampler has, beside the parameters of its operations."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    order: list[str] = [operation.label for operation in DEFAULT_ORDER]
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    # Most likely tokens reported with each sample.
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0

    @field_validator("order")
    @classmethod
    def _steps_are_known(cls, order: list[str]) -> list[str]:
        for label in order:
            if label not in _Labels:
                raise ValueError(f"{label!r} is no step; there are {', '.join(_Labels)}")
        if len(set(order)) < len(order):
            raise ValueError("a step is named twice")
        return order


_fields: dict[str, Any] = {name: _field(each) for name, each in ALL_PARAMETERS.items()}
_Parameters = create_model("SamplerParameters", __base__=SamplerParameters, **_fields)


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
        return any(each.operation in COUNTING for each in self.steps)


NO_RULE = Compiled([], 1.0, 0, 1.0, 0.0)  # beside a device program, which chooses itself


def _compiled(parameters: SamplerParameters) -> Compiled:
    """The operations in their order. What the choice does as well, at the end, is left to it.

    Raises:
        ApiError: `invalid-argument`: the order does not name a step that has parameters.
    """
    values = dict(parameters)
    order = [_Labels[label] for label in parameters.order]
    for operation in set(Operation) - {Operation.MASK, *order}:
        if step(operation, values) is not None:
            raise ApiError(
                "invalid-argument",
                f"sampler parameters: order: {operation.label} has parameters and is not named",
            )
    steps = [made for operation in order if (made := step(operation, values))]
    greedy = [i for i, s in enumerate(steps) if s.operation is Operation.TEMPERATURE]
    if values["temperature"] == 0:
        del steps[greedy[0] :]  # the most likely token of what is left
    last: dict[Operation, float] = {}
    choice = list(CHOICE)
    while steps and steps[-1].operation in choice:
        done = steps.pop()
        last[done.operation] = done.arguments[0]
        del choice[choice.index(done.operation) :]
    while steps and steps[-1].operation is Operation.MASK:  # which comes before the choice anyhow
        steps.pop()
    return Compiled(
        steps,
        0.0 if values["temperature"] == 0 else last.get(Operation.TEMPERATURE, 1.0),
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
        parameters = _Parameters.model_validate_json(text or "{}")
    except ValidationError as error:
        raise ApiError("invalid-argument", f"sampler parameters: {_explain(error)}") from None
    for name, parameter in ALL_PARAMETERS.items():
        tokens = getattr(parameters, name) or ()
        if parameter.kind not in (Kind.TOKENS, Kind.BIASES):
            continue
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
