"""A sampler as an inferlet has it, read and checked: fields, device programs, their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pie_control.device_programs.reading import OF_FIELDS, key_of
from pie_control.errors import first_fault, invalid, unsupported
from pie_py.device_programs.bound import Bound, bind, bind_some, types_of
from pie_py.device_programs.fields import checked_fields, highest_tokens, rule_of
from pie_py.device_programs.language import MOST_LAYERS
from pie_py.device_programs.program import Program, ProgramFault, program_for
from pie_py.device_programs.reader import LAYERS
from pie_py.device_programs.recording import Recorded
from pie_py.wire.plan import ModelDescription

Tensors: TypeAlias = Callable[[str], NDArray[np.float32]]
MOST_TEXT = 1 << 21  # characters of the JSON
MOST_TOP = 256
_MOST_TEXTS = 64
_SHORT = 256  # characters of parameters that are remembered


# A program's texts, its own first, each with its file and first line; or its name in the library.
_Program: TypeAlias = (
    str | Annotated[list[tuple[str, int, str]], Field(min_length=1, max_length=_MOST_TEXTS)]
)


class Wanted(BaseModel):
    """A program, the constants that its texts name, and values for its names."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    program: _Program
    constants: dict[str, Any] = {}
    given: dict[str, Any] = {}
    at: Annotated[tuple[int, ...], Field(max_length=MOST_LAYERS)] = ()  # of one in the layers
    # A prompt's inputs go through such a program, too, or the last of them.
    prompt: bool | Literal["last"] = False


class Parameters(BaseModel):
    """Parameters of a sampler, as an inferlet gives them: one JSON object."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    # Most likely tokens reported with each sample.
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] = 0
    program: _Program | None = None
    constants: dict[str, Any] = {}
    given: dict[str, Any] = {}
    attend: Wanted | None = None


_Given = TypeVar("_Given", Wanted, Parameters)


class Chosen(NamedTuple):
    """A program that is to be read, and what it is given.

    Attributes:
        key: what it is read from.
        values: of its names, as `bind` takes them.
        at: layers before which it runs, if it is one in the layers.
        prompt: whether such a one runs for a prompt's inputs, or the last of them.
    """

    key: str
    values: dict[str, Any]
    at: tuple[int, ...] = ()
    prompt: bool | str = False


class SamplerWanted(NamedTuple):
    """Reads parameters.

    Attributes:
        seed: None for one by chance.
        logprobs: most likely tokens reported with each sample.
        program: which chooses.
        attend: which chooses what layers read.
        tokens: the highest token id of each field that has any.
    """

    seed: int | None
    logprobs: int
    program: Chosen
    attend: Chosen | None
    tokens: dict[str, int]

    @property
    def keys(self) -> list[str]:
        """The texts that its programs are read from."""
        return [self.program.key] + ([] if self.attend is None else [self.attend.key])


def read_parameters(text: str, tensors: Tensors | None = None) -> SamplerWanted:
    """The parameters in a JSON object; an empty text is an empty object. What was uploaded
    `tensors` gives, by its place, `FILE/TENSOR`.

    Raises:
        ApiError: `invalid-argument`, naming the parameter; or of `tensors`.
    """
    return (_short if len(text) <= _SHORT and tensors is None else _read)(text, tensors)


def _read(text: str, tensors: Tensors | None) -> SamplerWanted:
    if len(text) > MOST_TEXT:
        raise invalid(f"sampler parameters: {len(text)} characters; {MOST_TEXT} at most")
    try:
        given = Parameters.model_validate_json(text or "{}")
        fields = checked_fields(given.model_extra or {})
        if tensors is not None:
            given = _with_tensors(given, tensors)
        program = _program(given, fields)
        attend = None if given.attend is None else _chosen(given.attend, attends=True)
    except ValidationError as error:
        raise invalid(f"sampler parameters: {first_fault(error)}") from None
    except (ProgramFault, RecursionError) as error:
        raise invalid(f"sampler parameters: {error}") from None
    return SamplerWanted(given.seed, given.logprobs, program, attend, highest_tokens(fields))


_short = lru_cache(256)(
    _read
)  # most generations have one of a few texts, which take longest to read


def _kept(attend: Wanted | None) -> dict[str, Any]:
    """The constants of a program in the layers that a sampler's program may read."""
    if attend is None or not attend.at:
        return {}
    types = sorted(types_of(attend.given, attends=True)[0].items())
    return {LAYERS: {name: (i, of.kind, of.shape) for i, (name, of) in enumerate(types)}}


def _with_tensors(wanted: _Given, tensors: Tensors) -> _Given:
    """With uploaded tensors in the places of `{"tensor": "FILE/NAME"}`."""
    given = dict(wanted.given)
    for name, value in given.items():
        match value:
            case {"tensor": str(place)}:
                given[name] = tensors(place)
    update: dict[str, Any] = {"given": given}
    if isinstance(wanted, Parameters) and wanted.attend is not None:
        update["attend"] = _with_tensors(wanted.attend, tensors)
    return wanted.model_copy(update=update)


def _program(given: Parameters, fields: Mapping[str, Any]) -> Chosen:
    """The program that chooses: one that is given, or that of some fields."""
    if given.program is None:
        if given.given or given.constants:
            raise ProgramFault("values and constants are those of a `program`")
        rule = rule_of(fields)
        return _chosen(Wanted(program=OF_FIELDS, constants=rule.constants, given=rule.given))
    if given.program == OF_FIELDS:
        raise ProgramFault("`sampler` is the program of the fields: give those")
    if fields:
        raise ProgramFault(f"{next(iter(fields))} beside a `program`, which chooses by itself")
    constants = {**given.constants, **_kept(given.attend)}
    return _chosen(Wanted(program=given.program, constants=constants, given=given.given))


def _chosen(wanted: Wanted, *, attends: bool = False) -> Chosen:
    if attends and not wanted.at and isinstance(wanted.program, str):  # its constants are budgets
        for name, value in wanted.constants.items():
            if not isinstance(value, int) or value < 0:
                told = f"{name} is {value!r:.60}: a whole number is wanted, 0 or more"
                raise ProgramFault(f"{wanted.program}: {told}")
    types, values = types_of(wanted.given, attends=attends)
    key = key_of(wanted.program, wanted.constants, types, attends=attends)
    return Chosen(key, values, wanted.at, wanted.prompt)


def bound_program(recorded: Recorded, values: Mapping[str, Any], facts: ModelDescription) -> Bound:
    """A program that was read, with the values of its names, for a model.

    Raises:
        ApiError: `invalid-argument`, naming the limit that is exceeded, and the place; or
            `unsupported`.
    """
    vocabulary = facts.vocab_size
    try:
        program = program_for(recorded.text, vocabulary)
        if sizes := program.lens_sizes():
            check_attends(facts, in_layers=True)
        if wrong := sizes - {facts.hidden_size}:
            raise ProgramFault(f"lens of {wrong.pop()} numbers: a residual has {facts.hidden_size}")
        return bind(program, values, vocabulary)
    except ProgramFault as error:
        raise invalid(f"device program: {recorded.explained(str(error))}") from None


def check_tokens(wanted: SamplerWanted, vocabulary: int) -> None:
    """Refuses token ids that a model has not. Raises ApiError `invalid-argument`."""
    for name, token in wanted.tokens.items():
        if token >= vocabulary:
            raise invalid(
                f"sampler parameters: {name}: {token} is outside the vocabulary (0 to"
                f" {vocabulary - 1})"
            )


def check_attends(facts: ModelDescription, *, in_layers: bool = False) -> None:
    """Refuses `attend` programs, or those in layers, for models without. Raises ApiError."""
    why = facts.no_attend or (facts.no_layers if in_layers else "")
    if why:
        raise unsupported(f"attend programs: {facts.name!r} has none: {why}")


def read_values(program: Program, text: str, vocabulary: int) -> dict[int, bytes]:
    """Other values of some names of a program, read from a JSON object and packed, by the numbers
    of the names.

    Raises:
        ApiError: `invalid-argument`, naming what is wrong.
    """
    if len(text) > MOST_TEXT:
        raise invalid(f"state: {len(text)} characters; {MOST_TEXT} at most")
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ProgramFault("no JSON object")
        return bind_some(program, given, vocabulary)
    except (ValueError, RecursionError) as error:
        raise invalid(f"state: {error}") from None
