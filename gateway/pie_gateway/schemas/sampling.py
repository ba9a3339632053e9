"""Fields that requests for text share, OpenAI's and then vLLM's; and those of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from pie_py import __version__
from pie_py.device_programs.fields import FIELDS, Field

MAX_CHOICES = 128
MAX_SEQUENCES = 64  # of `stop`
MAX_TOP_LOGPROBS = 20
# `system_fingerprint`: another one may choose other tokens
FINGERPRINT = f"pie_py-{__version__}"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
# Of a request: it may be left out where one model is served.
ModelName = Annotated[str, msgspec.Meta(max_length=512)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
StopText = Annotated[str, msgspec.Meta(min_length=1)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
# Of a list of tools: those of other types are left out of a request.
FUNCTIONS = msgspec.Meta(extra={"types": ("function",)})


# Fields that are parameters of a sampler as they are: all that OpenAI and vLLM do not have.
_OWN = {"logit_bias", "allowed_tokens", "banned_sequences", "end_tokens", "temperature", "top_k"}
_OWN |= {"frequency_penalty", "presence_penalty", "repetition_penalty", "top_p", "min_p"}
FURTHER = tuple(name for name in FIELDS if name not in _OWN)
_LISTS = {"tokens": Annotated[list[TokenId], msgspec.Meta(max_length=256)]}


def _type_of(field: Field) -> Any:
    kind = _LISTS.get(field.kind)
    if kind is None:
        number = float if field.kind == "float" else int
        kind = Annotated[number, msgspec.Meta(ge=field.least, le=field.most)]
    return kind | None


if TYPE_CHECKING:
    _Further = msgspec.Struct
else:
    _Further = msgspec.defstruct(
        "_Further",
        [(name, _type_of(FIELDS[name]), None) for name in FURTHER],
        kw_only=True,
    )


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: each part has the usage so far
    include_obfuscation: Literal[False] | None = None  # nothing is added to hide lengths


class PlainText(msgspec.Struct, forbid_unknown_fields=True, tag="text"):
    """Any text."""


class JsonObject(msgspec.Struct, forbid_unknown_fields=True, tag="json_object"):
    """A JSON object."""

    schema: dict[str, Any] | None = None  # llama.cpp's


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON schema and its name."""

    name: str | None = None  # OpenAI wants one
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: NamedSchema


ResponseFormat: TypeAlias = PlainText | JsonObject | JsonSchema


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's: one of these says what the text has to look like."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[StopText], msgspec.Meta(min_length=1)] | None = None
    grammar: str | None = None  # in Lark's syntax or GBNF
    json_object: bool | None = None


class NamedSampler(msgspec.Struct, forbid_unknown_fields=True):
    """A device program by its name, and what it is given: a number with a point is a float."""

    name: ModelName
    given: dict[str, Any] = {}


class SamplingRequest(_Further, kw_only=True, forbid_unknown_fields=True):
    """What every request for text may say."""

    model: ModelName = ""
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    n: Choices | None = None
    presence_penalty: Penalty | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[StopText], msgspec.Meta(max_length=MAX_SEQUENCES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    response_format: ResponseFormat | None = None
    store: Literal[False] | None = None  # nothing is stored
    # They change nothing here: a name for logs, and a hint where prefixes are cached by key; here
    # every prefix of a user is found.
    user: str | None = None
    prompt_cache_key: str | None = None
    # vLLM's
    top_k: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] | None = None  # -1 and 0: all
    min_p: Share | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=MAX_SEQUENCES)] | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    allowed_token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)] | None = None
    bad_words: Annotated[list[StopText], msgspec.Meta(max_length=MAX_SEQUENCES)] | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None  # the more, the later
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**24)] | None = None
    # In the place of parameters: a program of the library, or one that the user has uploaded.
    sampler: ModelName | NamedSampler | None = None
    # Its older names for `structured_outputs`.
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[StopText], msgspec.Meta(min_length=1)] | None = None
    guided_grammar: str | None = None
    # llama.cpp's
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None  # GBNF
    repeat_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    n_predict: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None  # -1: no bound
    cache_prompt: bool | None = None  # every prefix is cached


class PromptLogprob(msgspec.Struct):
    """How likely a token of a prompt was, as vLLM has it."""

    logprob: float
    rank: int | None  # 1: the likeliest; not known of one that is not among those asked for
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]  # by token id


class PromptDetails(msgspec.Struct):
    """Tokens of the prompts that need not be computed."""

    cached_tokens: int  # the prefix cache had them


class Usage(msgspec.Struct):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage(prompt: int, completion: int, cached: int) -> Usage:
    """Of all prompts and all their choices."""
    return Usage(prompt, completion, prompt + completion, PromptDetails(cached))
