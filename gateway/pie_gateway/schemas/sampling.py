"""Fields that requests for text share, OpenAI's and then vLLM's; and those of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

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
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
StopText = Annotated[str, msgspec.Meta(min_length=1)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
# Of a list of tools: those of other types are left out of a request.
FUNCTIONS = msgspec.Meta(extra={"types": ("function",)})


def fingerprint(version: str) -> str:
    """`system_fingerprint` of a version of an adapter or of weights, empty for none."""
    return f"{FINGERPRINT}-{version[:12]}" if version else FINGERPRINT


# Of a sampler's fields those that HTTP has under their names, and ranges that are narrower there.
SAMPLER = tuple(
    name
    for name in FIELDS
    if name not in ("logit_bias", "allowed_tokens", "banned_sequences", "end_tokens")
)
_NARROWER: dict[str, Any] = {
    "presence_penalty": Annotated[float, msgspec.Meta(ge=-2, le=2)],
    "frequency_penalty": Annotated[float, msgspec.Meta(ge=-2, le=2)],
    "repetition_penalty": Annotated[float, msgspec.Meta(gt=0, le=100)],
    "temperature": Annotated[float, msgspec.Meta(ge=0, le=100)],
    "top_k": Annotated[int, msgspec.Meta(ge=-1, lt=2**31)],  # -1 and 0: all
}
_TOKENS = Annotated[list[TokenId], msgspec.Meta(max_length=256)]


def _type_of(name: str, field: Field) -> Any:
    if field.kind == "tokens":
        return _TOKENS | None
    number: Any = float if field.kind == "float" else int
    kind = Annotated[number, msgspec.Meta(ge=field.least, le=field.most)]
    return _NARROWER.get(name, kind) | None


if TYPE_CHECKING:

    class SamplerFields(msgspec.Struct):
        """The fields of a sampler, by the names in `SAMPLER`."""

else:
    SamplerFields = msgspec.defstruct(
        "SamplerFields",
        [(name, _type_of(name, FIELDS[name]), None) for name in SAMPLER],
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


# Other servers' names of fields, and the places where we have them: vLLM's older ones, llama.cpp's,
# SGLang's, Mistral's.
ALIASES: dict[str, tuple[str, ...]] = {
    "guided_json": ("structured_outputs", "json"),
    "guided_regex": ("structured_outputs", "regex"),
    "guided_choice": ("structured_outputs", "choice"),
    "guided_grammar": ("structured_outputs", "grammar"),
    "json_schema": ("structured_outputs", "json"),
    "grammar": ("structured_outputs", "grammar"),
    "regex": ("structured_outputs", "regex"),
    "ebnf": ("structured_outputs", "grammar"),
    "repeat_penalty": ("repetition_penalty",),
    "random_seed": ("seed",),
    "n_predict": ("max_tokens",),
}


class SamplingRequest(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """The common fields of requests for text, beside those of a sampler."""

    aliases: ClassVar = ALIASES

    model: ModelName = ""
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    n: Choices | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[StopText], msgspec.Meta(max_length=MAX_SEQUENCES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    store: Literal[False] | None = None  # nothing is stored
    user: str | None = None  # a tag in the ledger
    # Names of the conversation. Prefixes are found without.
    prompt_cache_key: str | None = None
    session_id: str | None = None
    nvext: dict[str, Any] | None = None  # Dynamo's hints
    # vLLM's
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
    # In the place of parameters: a program of the library, or one that the user has uploaded.
    sampler: ModelName | NamedSampler | None = None


def same(asked: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Fields of a request, for one that has them by the same names."""
    return {name: getattr(asked, name) for name in names}


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
