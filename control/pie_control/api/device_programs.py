"""A device program as an inferlet gives it: its text, and values for its names, checked."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pie_control.api.sampler_parameters import AnyParameters
from pie_control.errors import ApiError, first_fault
from pie_py.device_programs.bound import Bound, bind, bind_some
from pie_py.device_programs.program import Program, ProgramFault, program_for
from pie_py.wire.plan import ModelDescription

MOST_TEXT = 1 << 21  # characters of the JSON


class ProgramParameters(AnyParameters):
    """The parameters of a sampler that is a device program."""

    program: str
    given: dict[str, Any] = Field(default_factory=dict)


def read_values(program: Program, text: str, vocabulary: int) -> dict[int, bytes]:
    """Other values of some names of a program, read from a JSON object and packed, by the numbers
    of the names.

    Raises:
        ApiError: `invalid-argument`, naming what is wrong.
    """
    if len(text) > MOST_TEXT:
        raise ApiError("invalid-argument", f"state: {len(text)} characters; {MOST_TEXT} at most")
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ProgramFault("no JSON object")
        return bind_some(program, given, vocabulary)
    except (ValueError, RecursionError) as error:
        raise ApiError("invalid-argument", f"state: {error}") from None


class AttendParameters(BaseModel):
    """A program of the stage `attend`, beside any sampler."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    program: str
    given: dict[str, Any] = {}


def take_attend(text: str, facts: ModelDescription) -> tuple[str, Bound | None]:
    """A sampler's parameters, a JSON object, without `attend`; and that program with its values, if
    there is one.

    Raises:
        ApiError: `unsupported` by the model, or as `read_program_parameters`.
    """
    if '"attend"' not in text or len(text) > MOST_TEXT:
        return text, None
    try:
        given = json.loads(text)
        wanted = given.pop("attend", None) if isinstance(given, dict) else None
        if wanted is None:
            return text, None
        parameters = AttendParameters.model_validate(wanted)
        program = program_for(parameters.program, facts.vocab_size)
        if not program.attends:
            raise ProgramFault("it gives a token: that is a sampler")
        bound = bind(program, parameters.given, facts.vocab_size)
    except ValidationError as error:
        raise ApiError("invalid-argument", f"attend: {first_fault(error)}") from None
    except (ValueError, RecursionError) as error:  # a ProgramFault, too
        raise ApiError("invalid-argument", f"attend: {error}") from None
    if facts.no_attend:
        raise ApiError(
            "unsupported", f"attend programs: {facts.name!r} has none: {facts.no_attend}"
        )
    return json.dumps(given), bound


def read_program_parameters(text: str, vocabulary: int) -> tuple[ProgramParameters, Bound]:
    """Parameters of a sampler with a `program`, a JSON object, and that program with its values.

    Raises:
        ApiError: `invalid-argument`, naming what is wrong, and the limit that is exceeded.
    """
    if len(text) > MOST_TEXT:
        raise ApiError(
            "invalid-argument", f"device program: {len(text)} characters; {MOST_TEXT} at most"
        )
    try:
        parameters = ProgramParameters.model_validate_json(text)
        program = program_for(parameters.program, vocabulary)
        if program.attends:
            raise ProgramFault("it is one of the stage `attend`: give it as `attend`")
        return parameters, bind(program, parameters.given, vocabulary)
    except ValidationError as error:
        raise ApiError("invalid-argument", f"device program: {first_fault(error)}") from None
    except ProgramFault as error:
        raise ApiError("invalid-argument", f"device program: {error}") from None
