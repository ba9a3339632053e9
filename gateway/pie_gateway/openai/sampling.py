"""From the fields of OpenAI and vLLM to a job's: how tokens are chosen, and where they end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pie_gateway.backend.job import Grammar, Job
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.problems import unsupported, wrong
from pie_gateway.schemas.sampling import (
    SAMPLER,
    JsonObject,
    JsonSchema,
    NamedSampler,
    SamplingRequest,
    StreamOptions,
    StructuredOutputs,
)

RANDOM = -1  # the seed that asks for another one each time, to llama.cpp and Ollama
MOST_EXPECTED = 2**31  # tokens of a hint
SEEDS = 2**53  # integers that JSON's readers agree on


def sampling(asked: SamplingRequest, words: Vocabulary, top_logprobs: int = 0) -> dict[str, Any]:
    """Parameters of the SDKs' `Sampler`. Raises `Problem`: 400 naming the field that is wrong."""
    biases = _biases(asked.logit_bias or {})
    words.check("logit_bias", map(int, biases))
    for field in ("allowed_token_ids", "stop_token_ids", "dry_sequence_breakers"):
        words.check(field, getattr(asked, field) or ())
    parameters = {name: getattr(asked, name) for name in SAMPLER} | {
        "logit_bias": biases,
        "allowed_tokens": asked.allowed_token_ids,
        "logprobs": top_logprobs,
        "seed": None if asked.seed in (None, RANDOM) else asked.seed % SEEDS,
    }
    if parameters["top_k"] == -1:
        parameters["top_k"] = 0
    found = {name: value for name, value in parameters.items() if value is not None}
    if not asked.sampler:
        return found
    for name, value in found.items():
        if value != {} and name not in ("logprobs", "seed"):
            raise unsupported("sampler", f"it takes the place of `{name}`")
    named = NamedSampler(asked.sampler) if isinstance(asked.sampler, str) else asked.sampler
    return {**found, "program": named.name, "given": named.given}


def most_tokens(*given: int | None) -> int | None:
    """`max_tokens`, the first that is given; None: no bound, as -1. Raises `Problem`: 400 for 0."""
    found = next((count for count in given if count is not None), -1)
    if not found:
        raise unsupported("max_tokens", "at least 1, or -1 for no bound")
    return None if found == -1 else found


def fill_ends(
    job: Job,
    asked: SamplingRequest,
    model: Mapping[str, Any],
    words: Vocabulary,
    shown: Sequence[str] = (),
) -> None:
    """Sets what ends a job's text and its prompt, what is left out of it, and when it is its turn;
    the special tokens that are `shown` are sent nevertheless: calls are recognised by them. Raises
    `Problem`: 400 if fields do not go together.
    """
    if isinstance(asked.stop, str):
        job.stop = [asked.stop] if asked.stop else []
    else:
        job.stop = asked.stop or []
    ends = [*([] if asked.ignore_eos else model["stop_tokens"]), *(asked.stop_token_ids or [])]
    if asked.ignore_eos or asked.stop_token_ids:
        job.stop_tokens = ends
    if least := job.sampler.get("min_tokens"):
        if job.max_tokens is not None and least > job.max_tokens:
            raise unsupported("min_tokens", f"{least} is more than `max_tokens`, {job.max_tokens}")
        job.sampler["end_tokens"] = ends
    job.include_stop = bool(asked.include_stop_str_in_output)
    job.bad_words = asked.bad_words or []
    job.priority = -(asked.priority or 0)
    if asked.prompt_logprobs is not None:
        if asked.stream:
            raise unsupported("prompt_logprobs", "they do not go with `stream: true`")
        if job.images:
            raise unsupported("prompt_logprobs", "they do not go with images")
        job.prompt_logprobs = max(asked.prompt_logprobs, job.prompt_logprobs or 0)
    if asked.truncate_prompt_tokens is not None:
        if not asked.truncate_prompt_tokens:
            raise unsupported("truncate_prompt_tokens", "at least 1, or -1 for as many as fit")
        if job.images:
            raise unsupported("truncate_prompt_tokens", "it does not go with images")
        room = model["max_position"] - (job.max_tokens or 1)
        job.truncate = room if asked.truncate_prompt_tokens == -1 else asked.truncate_prompt_tokens
    if asked.skip_special_tokens is not False:
        job.hidden = words.hidden(shown)


def hinted(asked: SamplingRequest, choices: int) -> dict[str, Any]:
    """The goal of an answer by Dynamo's hints, as arguments of the client's `launch`."""
    given = (asked.nvext or {}).get("agent_hints")
    hints = given if isinstance(given, dict) else {}
    length, urgency = (_number(hints.get(name)) for name in ("osl", "priority"))
    urgency = urgency or _number(hints.get("latency_sensitivity"))
    goal: dict[str, Any] = {}
    if length >= 1:
        goal["expected_tokens"] = choices * int(min(length, MOST_EXPECTED))
    if urgency:
        goal["objective"] = "latency" if urgency > 0 else "throughput"
    return goal


def _number(hint: Any) -> float:
    """A hint that is a number; 0 if it is none: a hint refuses no request."""
    return hint if isinstance(hint, int | float) and not isinstance(hint, bool) else 0


def grammar(asked: SamplingRequest) -> Grammar | None:
    """The form that a text is held to. Raises `Problem`: 400 if it is said in two ways."""
    outputs = None if asked.structured_outputs is None else _structured(asked.structured_outputs)
    if outputs is not None:
        outputs.field = "structured_outputs"
    match asked.response_format:
        case JsonObject(schema):
            found = schema_grammar({"type": "object", **(schema or {})}, strict=True)
        case JsonSchema(named):
            found = schema_grammar(named.schema or {}, strict=named.strict is not False)
        case _:
            return outputs
    if outputs is not None:
        raise unsupported("structured_outputs", "`response_format` says what the text looks like")
    return found


def schema_grammar(schema: dict[str, Any], *, strict: bool) -> Grammar:
    """JSON of a schema; `strict`: with nothing but what it names, where it does not say."""
    if strict:
        schema = {**schema, "x-guidance": {"strict": True, **schema.get("x-guidance", {})}}
    return Grammar("json-schema", json.dumps(schema))


def _structured(asked: StructuredOutputs) -> Grammar | None:
    given = [getattr(asked, name) not in (None, False) for name in asked.__struct_fields__]
    if not any(given):
        return None
    if sum(given) > 1:
        raise unsupported("structured_outputs", "give one of its fields")
    if asked.json is not None:
        text = asked.json if isinstance(asked.json, str) else json.dumps(asked.json)
        return Grammar("json-schema", text)
    if asked.regex is not None:
        return Grammar("regex", asked.regex)
    if asked.choice is not None:
        return Grammar("regex", "|".join(map(_literal, asked.choice)))  # any number of them
    if asked.grammar is not None:
        return Grammar("lark", asked.grammar)
    return Grammar("json-schema", '{"type": "object"}')


def _literal(text: str) -> str:
    """A regular expression, in Rust's syntax, of one text."""
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def stream_options(asked: SamplingRequest) -> StreamOptions:
    """The options of the stream. Raises `Problem`: 400 if there is no stream."""
    found = asked.stream_options
    if found is None or not found.include_usage:
        return StreamOptions()
    if not asked.stream:
        raise unsupported("stream_options", "it goes with `stream: true`")
    return found


def _biases(asked: dict[str, float]) -> dict[str, float]:
    for token in asked:
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise wrong("logit_bias", f"{token[:50]!r} is no token id")
    return {str(int(token)): bias for token, bias in asked.items()}
