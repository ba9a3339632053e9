"""`http-requests`: the same requests to `vllm serve` and to the gateway, and how they are answered.

What vLLM's documentation says that a request may hold is sent to both. Compared are the status, and
the shape of the answer: the names of its fields, at all depths. Texts differ, for the choice of
tokens is not the same.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.http.gateway import NAME, gateway_server
from benchmarks.http.vllm import vllm_program, vllm_serve
from benchmarks.peers import vllm_python
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import with_room
from pie_py.config.model import ModelConfig

SECONDS = 60.0  # for one answer
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STREAM = {"stream": True}
USAGE = {**STREAM, "stream_options": {"include_usage": True}}
HI = [{"role": "user", "content": "Hi"}]

# Fields beside `model` and the prompt. Requests for both endpoints:
BOTH: Mapping[str, dict[str, Any]] = {
    "nothing else": {},
    "max_tokens": {"max_tokens": 4},
    "stream": STREAM,
    "stream with usage": USAGE,
    "n": {"n": 2, "temperature": 1},
    "n, streamed": {"n": 2, "temperature": 1, **STREAM},
    "seed, temperature, top_p": {"seed": 1, "temperature": 0.8, "top_p": 0.9},
    "top_k, min_p": {"top_k": 5, "min_p": 0.1},
    "penalties": {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {"50": 100}},
    "stop": {"stop": ["a", "e"]},
    "stop_token_ids, ignore_eos": {"stop_token_ids": [5], "ignore_eos": True},
    "allowed_token_ids": {"allowed_token_ids": [50, 60]},
    "skip_special_tokens": {"skip_special_tokens": False},
    "return_token_ids": {"return_token_ids": True},
    "response_format: json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    },
    "response_format: json_object": {"response_format": {"type": "json_object"}},
    "structured_outputs: regex": {"structured_outputs": {"regex": "[ab]{3}"}},
    "structured_outputs: choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "structured_outputs: json": {"structured_outputs": {"json": SCHEMA}},
    "refused: another model": {"model": "another"},
    "refused: temperature below 0": {"temperature": -1},
    "refused: top_p above 1": {"top_p": 2},
    "refused: n of 0": {"n": 0},
    "refused: presence_penalty of 9": {"presence_penalty": 9},
    "refused: more tokens than the context": {"max_tokens": 10_000_000},
    "refused: stream_options without a stream": {"stream_options": {"include_usage": True}},
    "refused: a token outside the vocabulary": {"logit_bias": {"10000000": 1}},
    "refused: a schema that is none": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}
    },
}
COMPLETIONS: Mapping[str, dict[str, Any]] = {
    "several prompts": {"prompt": ["Hi", "Ho"]},
    "token ids": {"prompt": [20, 21, 22]},
    "lists of token ids": {"prompt": [[20, 21], [22]]},
    "echo": {"echo": True},
    "echo with logprobs": {"echo": True, "logprobs": 1},
    "logprobs": {"logprobs": 2},
    "logprobs, streamed": {"logprobs": 2, **STREAM},
    "refused: suffix": {"suffix": "end"},
    "refused: a prompt without tokens": {"prompt": []},
}
CHAT: Mapping[str, dict[str, Any]] = {
    "max_completion_tokens": {"max_completion_tokens": 4},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "logprobs, streamed": {"logprobs": True, "top_logprobs": 2, **STREAM},
    "system and assistant": {
        "messages": [
            {"role": "system", "content": "Be short."},
            *HI,
            {"role": "assistant", "content": "Ho"},
            *HI,
        ]
    },
    "parts of text": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "add_generation_prompt": {"add_generation_prompt": False},
    "refused: top_logprobs without logprobs": {"top_logprobs": 2},
    "refused: a role that is none": {"messages": [{"role": 5, "content": "Hi"}]},
    "refused: a named tool without tools": {
        "tool_choice": {"type": "function", "function": {"name": "f"}}
    },
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """vLLM's requests for chat and completions, sent to both."""

    vllm: str | None = vllm_python()
    model: ModelConfig = options.model("small")


class Answer(NamedTuple):
    """What a server has answered."""

    status: int
    fields: frozenset[str]  # paths of names, of all events of a stream


def compare(settings: Settings, progress: Progress) -> Report:
    """Sends each request to both."""
    program = vllm_program(settings.vllm)
    cases = list(_cases())
    progress.expect(1 + len(cases))
    report = Report(
        "Requests to vllm serve and to the gateway",
        ["request", "vLLM", "pie_py", "fields only of vLLM", "fields only of pie_py"],
        notes=["Statuses, and names of fields that are told with a value, of answers with 200."],
    )
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        vllm_serve(program, settings.model, Path(folder)) as (theirs, _),
        gateway_server(with_room(settings.model, 8, 256)) as ours,
    ):
        progress("both serve")
        alike = 0
        for name, path, body in cases:
            found, own = (_ask(url + path, body) for url in (theirs, ours.url))
            missing = found.fields - own.fields if found.status == own.status == 200 else ()
            more = own.fields - found.fields if found.status == own.status == 200 else ()
            alike += found.status == own.status
            lists = [", ".join(sorted(fields)) for fields in (missing, more)]
            report.rows.append([name, found.status, own.status, *lists])
            progress(name)
    share = alike / len(cases)
    report.goals.append(Goal("requests with the same status", share, 1.0, at_most=False))
    return report


def _cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    small = {"model": NAME, "max_tokens": 8, "temperature": 0}
    for kind, prompt, own in (
        ("completions", {"prompt": "Hi"}, COMPLETIONS),
        ("chat/completions", {"messages": HI}, CHAT),
    ):
        for name, fields in {**BOTH, **own}.items():
            yield f"{kind}: {name}", f"/v1/{kind}", {**small, **prompt, **fields}


def _ask(url: str, body: dict[str, Any]) -> Answer:
    data = json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=SECONDS) as answer:
            text = answer.read().decode()
    except HTTPError as error:
        return Answer(error.code, frozenset())
    if not body.get("stream"):
        return Answer(200, frozenset(_paths(json.loads(text))))
    told = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    paths = {path for each in told if each != "[DONE]" for path in _paths(json.loads(each))}
    return Answer(200, frozenset(paths))


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Where values stand that are not null or empty; an object by token's text is one place."""
    if isinstance(value, dict) and not path.endswith("top_logprobs"):
        for key, inner in value.items():
            name = "*" if key.isdigit() else key  # by token
            yield from _paths(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, path)
    elif value not in (None, "", {}):
        yield path


BENCHMARK = Benchmark(Settings, compare)
