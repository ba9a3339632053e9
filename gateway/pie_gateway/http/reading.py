"""Request bodies: their size, the time they take, and JSON into typed structures.

Clients send whole objects: most of the fields are empty, and many are of other servers. What asks
for nothing is left out, and so are tools that are no functions.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeVar

import anyio
import msgspec
import structlog
from msgspec.inspect import (
    AnyType,
    DictType,
    ListType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    type_info,
)
from starlette.requests import Request

from pie_gateway.problems import Problem, unsupported
from pie_py.config.gateway import GatewayConfig
from pie_py.config.printable import one_line

log = structlog.get_logger("pie.http")
Body = TypeVar("Body", bound=msgspec.Struct)
# Fields that are not had here, with what happens anyway: clients send them as they are by default.
# They are vLLM's, SGLang's, llama.cpp's and Ollama's; then OpenAI's and Anthropic's.
USUAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("use_beam_search", "early_stopping", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("timings_per_token", "no_stop_trim", "return_hidden_states"), (False,)),
    **dict.fromkeys(("post_sampling_probs", "backend_sampling"), (False,)),
    **dict.fromkeys(("safe_prompt", "prefix"), (False,)),
    "reasoning_format": ("auto", "deepseek"),
    **dict.fromkeys(("spaces_between_special_tokens", "detokenize", "include_reasoning"), (True,)),
    **dict.fromkeys(("separate_reasoning", "stream_reasoning", "parse_tool_calls"), (True,)),
    **dict.fromkeys(("mirostat", "n_keep", "n_probs", "dynatemp_range"), (0,)),
    **dict.fromkeys(("top_n_sigma", "id_slot", "dry_penalty_last_n"), (-1,)),
    **dict.fromkeys(("length_penalty", "best_of", "tfs_z", "dynatemp_exponent", "n"), (1,)),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (0,)),
    **dict.fromkeys(("echo", "return_progress", "truncate", "shift", "logprobs"), (False,)),
    **dict.fromkeys(("vocab_only", "logits_all", "embedding_only"), (False,)),
    "top_logprobs": (0,),
    "mirostat_tau": (5,),
    "mirostat_eta": (0.1,),
    "penalize_newline": (True,),
    **dict.fromkeys(("verbose", "prewarm"), (False,)),
    **dict.fromkeys(("cyber", "speed"), ("standard",)),
    **dict.fromkeys(("context", "context_compression"), ("auto",)),
    "allowed_callers": (["direct"],),
    "completion_window": ("soonest",),
    "inference_geo": ("global",),
    "mode": ("standard", "implicit", "explicit"),
    "verbosity": ("medium",),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
}
# Hints, whatever they say: versions of a protocol, the user, how long a prefix is cached, that
# thoughts are summed up or a function is told of later; what others' answers have, and ours not.
HINTS = {"anthropic_beta", "anthropic_version", "betas", "client_metadata", "user_profile_id"}
HINTS |= {"workspace_id", "prompt_cache_breakpoint", "prompt_cache_retention", "cache_control"}
HINTS |= {"defer_loading", "generate_summary", "summary", "ttl", "cache_prompt"}
HINTS |= {"caller", "extra_content", "namespace", "provider_specific_fields", "reasoning_details"}
HINTS |= {"thinking_blocks", "request_id"}
MOST_STRINGS, MOST_ITEMS, MOST_LISTS = 262_144, 1_000_000, 131_072  # of a body
# The place comes last; what precedes it may have a client's words in it.
_PLACE = r"(?: - at `\$([^`]*)`)?"
_UNKNOWN = re.compile(f"Object contains unknown field `(.*?)`{_PLACE}", re.DOTALL)
_MISSING = re.compile(f"Object missing required field `(.*?)`{_PLACE}", re.DOTALL)
# Of a pair of surrogates, one alone: what cuts a text between them sends it.
_HALF = re.compile(
    rb"\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][\da-fA-F]{2}"
)
_WRONG = re.compile(f"(.*?){_PLACE}", re.DOTALL)
_EMPTY: dict[type, type] = {str: StrType, list: ListType, dict: DictType}
_STEP = re.compile(r"[^.\[\]]+")
_BYTE, _NEAR = re.compile(r"\(byte (\d+)\)$"), 24


async def read_body(request: Request, config: GatewayConfig) -> bytes:
    """The bytes of a request's body; raises as `body_parts`."""
    parts = [part async for part in body_parts(request, config)]
    if len(parts) == 1:
        return parts[0]
    return await anyio.to_thread.run_sync(b"".join, parts)  # of many it lets others go on


async def body_parts(request: Request, config: GatewayConfig) -> AsyncIterator[bytes]:
    """A request's body as it comes. Raises `Problem`: 413 if it is too large, 408 if it takes too
    long, 415 if it is compressed. Raises `ClientDisconnect`: the client has left.
    """
    if (packed := request.headers.get("content-encoding", "identity")) != "identity":
        raise Problem(415, f"`content-encoding: {packed[:20]}`: the body is read as it is")
    limit = config.body_bytes
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    size, end = 0, anyio.current_time() + config.body_seconds
    stream = request.stream()
    while True:
        part = None
        with anyio.CancelScope(deadline=end):
            part = await anext(stream, b"")
        if part is None:
            text = f"the request's body has not arrived within {config.body_seconds:g} s"
            raise Problem(408, text)
        if not part:
            return
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        yield part


def parse(body: bytes, kind: type[Body]) -> Body:
    """JSON as a structure. Raises `Problem`: 400 naming the wrong field; 413 of too many parts."""
    body = body.removeprefix(BOM_UTF8)  # as editors of Windows write it
    _check_parts(body)
    try:
        try:
            found: Body = _decoder(kind).decode(body)
        except msgspec.ValidationError:
            found = convert(msgspec.json.decode(body), kind)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = _BYTE.search(str(error))
        near = body[max(0, int(at[1]) - _NEAR) : int(at[1]) + _NEAR] if at else body[-_NEAR:]
        if half := _HALF.search(near):
            text = f"the body has {half[0].decode()}, half of a character, which is no text"
            raise Problem(400, text, code="invalid_value") from None
        raise Problem(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deep") from None


def _check_parts(body: bytes) -> None:
    """Refuses what would take long to parse, in which nothing is streamed to others.

    Nothing is parsed yet: commas and brackets within strings count, quotes in them do not.
    """
    if len(body) < min(MOST_STRINGS, MOST_ITEMS, MOST_LISTS):
        return
    strings = (body.count(b'"') - body.count(b'\\"')) // 2
    lists = body.count(b"[") + body.count(b"{")
    if strings > MOST_STRINGS or body.count(b",") > MOST_ITEMS or lists > MOST_LISTS:
        raise Problem(
            413,
            f"the body has more than {MOST_STRINGS} strings, {MOST_ITEMS} commas, or {MOST_LISTS}"
            " lists and objects: send less",
            code="body_too_large",
        )


def convert(value: Any, kind: Any, place: str = "") -> Any:
    """Parsed JSON as a structure, of what stands at a place of the request; what asks for nothing
    is left out of it, in place. Raises `Problem`: 400 naming the field that is wrong. Raises
    `RecursionError`: it is nested too deep.
    """
    given = _rename(value, getattr(kind, "aliases", {}), f"{place}." if place else "")
    leave_out_nothing(value, _type(kind))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), place, given, partial(_choices, value, _type(kind))) from None


def _rename(value: Any, aliases: Mapping[str, tuple[str, ...]], within: str) -> dict[str, str]:
    """Moves fields with other servers' names to where we have them, in place; returns their names
    by those places. A field of our name comes before one that says the same. Raises `Problem`: 400
    if two fields of an object say it.
    """
    given: dict[str, str] = {}
    for name, (field, *inner) in aliases.items():
        if not isinstance(value, dict) or (said := value.pop(name, None)) in (None, ""):
            continue
        held = value.get(field)
        if not inner:
            value[field] = said if held is None else held
        # An object says nothing if no field is set; an empty schema is, it takes every JSON.
        elif (rest := _set(held)) and rest != {inner[0]: said}:
            raise unsupported(name, "another field says what the text looks like")
        else:
            value[field] = {inner[0]: said}
        given[within + ".".join((field, *inner))] = within + name
    return given


def _set(held: Any) -> Any:
    """Of an object the fields that say something."""
    if not isinstance(held, dict):
        return held
    return {name: each for name, each in held.items() if each not in (None, "", False)}


@cache
def _type(kind: Any) -> Type:
    return type_info(kind)


@cache
def _decoder(kind: type[Body]) -> msgspec.json.Decoder[Body]:
    return msgspec.json.Decoder(kind)


def explain(
    text: str,
    place: str = "",
    given: Mapping[str, str] = MappingProxyType({}),
    choices: Callable[[list[str]], list[Any]] = lambda way: [],
) -> Problem:
    """msgspec's error about what stands at a place, with the field's name apart, as it is given,
    and the values that it may have, if they are few.
    """
    for pattern, code, why in (
        (_UNKNOWN, "unknown_parameter", "is not supported"),
        (_MISSING, "missing_parameter", "is missing"),
    ):
        if found := pattern.fullmatch(text):
            field = f"{place}{found[2] or ''}.{found[1]}".removeprefix(".")
            return Problem(400, f"`{field}` {why}", param=field, code=code)
    reason, within = _WRONG.fullmatch(text).groups()  # type: ignore[union-attr]
    field = f"{place}{within or ''}".removeprefix(".")
    if reason.startswith("Invalid") and (may := choices(_STEP.findall(within or ""))):
        reason += f"; it may be {', '.join(msgspec.json.encode(each).decode() for each in may)}"
    for ours, name in given.items():
        if field.startswith(ours):
            field = name + field.removeprefix(ours)
    if not field:
        return Problem(400, text, code="invalid_value")
    if reason.startswith("Expected `null`"):
        message, code = f"`{field}` is not supported", "unsupported_parameter"
    else:
        message, code = f"`{field}`: {reason}", "invalid_value"
    return Problem(400, message, param=field, code=code)


def _choices(value: Any, kind: Type, way: list[str]) -> list[Any]:
    """The values that what stands behind some names and numbers may have, if they are counted."""
    if isinstance(kind, Metadata):
        return _choices(value, kind.type, way)
    if isinstance(kind, UnionType):
        return [found for each in kind.types for found in _choices(value, each, way)]
    if not way:
        return list(kind.values) if isinstance(kind, LiteralType) else []
    if isinstance(kind, ListType) and isinstance(value, list):
        return _choices(value[int(way[0])], kind.item_type, way[1:])
    if isinstance(kind, StructType) and isinstance(value, dict):
        if way == [kind.tag_field]:
            return [kind.tag]
        if kind.tag_field is None or value.get(kind.tag_field) == kind.tag:
            fields = [each for each in kind.fields if each.encode_name == way[0]]
            return [c for each in fields for c in _choices(value[way[0]], each.type, way[1:])]
    return []


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the request's body has more than {limit} bytes", code="body_too_large")


def encode(value: Any) -> bytes:
    """JSON of an answer, in one line for every reader."""
    return one_line(msgspec.json.encode(value))


def leave_out_nothing(value: Any, kind: Type) -> None:
    """Takes out of the objects of a body, in place, the fields that ask for nothing.

    Which ones these are depends on the schema: an empty list in a schema of JSON, or in the
    arguments of a call, stays. What asks for something stays, so that it is refused by its name.
    """
    if isinstance(kind, UnionType):
        for each in kind.types:
            leave_out_nothing(value, each)
    elif isinstance(kind, Metadata):
        if isinstance(value, list) and kind.extra:
            _leave_out_tools(value, kind.extra["types"])
        leave_out_nothing(value, kind.type)
    elif isinstance(kind, ListType) and isinstance(value, list):
        for item in value:
            leave_out_nothing(item, kind.item_type)
    elif (
        isinstance(kind, StructType)
        and isinstance(value, dict)
        and (kind.tag_field is None or value.get(kind.tag_field) == kind.tag)
    ):
        fields = {field.encode_name: field for field in kind.fields}
        for name in value.keys() - {kind.tag_field}:
            field = fields.get(name)
            if field is None or isinstance(field.type, NoneType):
                if asks_for_nothing(name, value[name]):
                    del value[name]
            elif not field.required and (
                value[name] in (None, *USUAL.get(name, ()))
                or (value[name] in ("", [], {}) and not _takes(field.type, type(value[name])))
            ):
                del value[name]
            elif isinstance(value[name], float) and value[name].is_integer():
                # 4.0, of clients whose numbers all have a point
                value[name] = int(value[name]) if abs(value[name]) < 2**53 else value[name]
            else:
                leave_out_nothing(value[name], field.type)


def _takes(kind: Type, empty: type) -> bool:
    """True if an empty text, list or object is a value of a kind."""
    if isinstance(kind, Metadata):
        return _takes(kind.type, empty)
    if isinstance(kind, UnionType):
        return any(_takes(each, empty) for each in kind.types)
    if isinstance(kind, StructType):
        needed = kind.tag_field or any(each.required for each in kind.fields)
        return empty is dict and not needed
    return isinstance(kind, (AnyType, _EMPTY[empty]))


def asks_for_nothing(name: str, value: Any) -> bool:
    """True if a field is a hint, or its value is empty, its usual one, `none` or `disabled`; of an
    object, whether that is so of each field.

    `false` and 0 are not among these: `enable_thinking: false` asks for much.
    """
    rest = [(name, value)]
    while rest:
        name, value = rest.pop()
        if name in HINTS:
            continue
        if isinstance(value, dict):
            rest += value.items()
        elif value not in (None, "", "none", "disabled", []) and value not in USUAL.get(name, ()):
            return False
    return True


def _leave_out_tools(tools: list[Any], types: tuple[str, ...]) -> None:
    """Takes tools of other types out of a list, in place: their makers' own servers know them."""
    functions, others = [], set()
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        # What is no text, or a function in another API's words, is an error. OpenAI's MCP servers
        # are told from ours by their field.
        known = (*types, "function")
        if isinstance(kind, str) and (kind not in known or "server_label" in tool):
            others.add(kind[:40])
        else:
            functions.append(tool)
    if others:
        tools[:] = functions
        log.info("tools that are no functions are left out", types=sorted(others)[:20])
