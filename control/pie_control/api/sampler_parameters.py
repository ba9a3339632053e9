"""Parameters of a sampler, as an inferlet gives them: one JSON object, checked."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pie_control.errors import ApiError

MAX_TEXT = 4096  # characters of the JSON
MAX_TOP = 256


class AnyParameters(BaseModel):
    """What every sampler has, be it a device program or not."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    # Most likely tokens reported with each sample.
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0


class SamplerParameters(AnyParameters):
    """How the worker itself chooses: temperature, then top-k, top-p and min-p."""

    # It ends far from where float32 loses its grip.
    temperature: Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Temperature, top-p, min-p."""
        return self.temperature, self.top_p, self.min_p


_UNKNOWN = (
    f"there are {', '.join(SamplerParameters.model_fields)}; all else is a device program:"
    " docs/device-programs.md"
)
PLAIN = SamplerParameters()  # beside a device program, which chooses itself


@lru_cache(256)  # most generations have one of a few texts, which take longest to read
def read_parameters(text: str) -> SamplerParameters:
    """The parameters in a JSON object; an empty text is an empty object.

    Raises:
        ApiError: `invalid-argument`, naming the parameter.
    """
    if len(text) > MAX_TEXT:
        raise ApiError(
            "invalid-argument", f"sampler parameters of {len(text)} characters; {MAX_TEXT} at most"
        )
    try:
        return SamplerParameters.model_validate_json(text or "{}")
    except ValidationError as error:
        raise ApiError("invalid-argument", f"sampler parameters: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    parts = []
    for fault in error.errors(include_url=False, include_context=False)[:3]:
        place = ".".join(str(part) for part in fault["loc"])
        given = repr(fault["input"])[:60]
        text = _UNKNOWN if fault["type"] == "extra_forbidden" else fault["msg"]
        parts.append(f"{place}: {text} (given: {given})" if place else text)
    return "; ".join(parts)
