"""Refusals by name, and faults of the network."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from support.gateways import Gateway
from support.servers import NO_MODEL, Server, until

from pie_control.errors import Shortage
from pie_gateway.backend.generation import Generation, Seat
from pie_gateway.backend.job import Job, Piece, Prompt
from pie_gateway.http.answers import EventStream
from pie_gateway.http.reading import parse
from pie_gateway.ollama.generating import chat_request
from pie_gateway.problems import Problem, headers_of, of_text
from pie_gateway.schemas.completions import CompletionRequest
from pie_gateway.schemas.ollama import OllamaChatRequest, OllamaMessage
from pie_gateway.schemas.sampling import StructuredOutputs
from pie_py.client import Client, Instance
from pie_py.config.gateway import GatewayConfig

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {
    "model": "pie-tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 2,
}


TEXT = "/v1/completions"
LOST = {"type": "object", "properties": {"a": {"$ref": "#/defs/lost"}}}
LOOSE = {"name": "a", "schema": LOST}
TOOL = {"type": "function", "function": {"name": "f", "parameters": LOST}}
LONG = "one two three " * 20_000
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    CHAT: [
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"store": True}, "store"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"stop": [""]}, "stop[0]"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning": {"effort": "low", "summary": None}}, "reasoning"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"verbosity": "low"}, "verbosity"),
        ({"a`b": 1}, "a`b"),
        ({"guided_choice": [""]}, "guided_choice[0]"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"n_predict": -2, "max_tokens": None}, "n_predict"),
        ({"grammar": "a", "json_schema": {}}, "grammar"),
        ({"logit_bias": {"5": 1, "999999": 5}}, "logit_bias"),
        ({"stop_token_ids": [999_999]}, "stop_token_ids"),
        ({"allowed_token_ids": [5, 999_999]}, "allowed_token_ids"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": [999_999]}, "dry_sequence_breakers"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": LOOSE}}, "response_format"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
    ],
    TEXT: [
        ({"prompt": [5, 999_999]}, "prompt"),
        ({"prompt": [[5], [999_999]], "stop_token_ids": [1]}, "prompt"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": " "}, "suffix"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": LONG}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"temperature": -1}, "temperature"),
        ({"nonsense": 1}, "nonsense"),
        ({"typical_p": 0}, "typical_p"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"priority": -1}, "priority"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
    "/v1/responses": [
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"input": LONG}, "input"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options"),
        ({"background": True}, "background"),
        ({"input": [{"type": "nothing"}]}, "input[0].type"),
    ],
    "/v1/messages": [
        ({"speed": "fast"}, "speed"),
        ({"mcp_servers": [{"type": "url", "url": "x", "name": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management.edits[0].type"),
    ],
    "/v1/embeddings": [
        ({"input": [[5], [999_999]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": LONG}, "input"),
        ({"dimensions": 4096}, "dimensions"),
    ],
    "/detokenize": [({"tokens": [5, 999_999]}, "tokens")],
}
USUAL: dict[str, dict[str, Any]] = {  # beside the model
    CHAT: HI,
    TEXT: {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": HI,
    "/v1/embeddings": {"input": "x"},
    "/detokenize": {},
}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [(path, *case) for path, cases in WRONG.items() for case in cases],
    ids=lambda each: str(each)[:80],
)
def test_a_wrong_field_is_named(
    http: httpx2.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = http.post(path, json={"model": "pie-tiny", **USUAL[path], **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error.get("param", param) == param, error
    assert "param" in error or path == "/v1/messages"  # Anthropic's errors have none
    too_long = error["message"].startswith("prompt is too long")
    assert too_long == (LONG in str(fields))
    too_much = error["message"].startswith("`max_tokens` is too large, this model's maximum")
    assert too_much == ("5000" in str(fields))
    assert (too_long or too_much) == (error.get("code") == "context_length_exceeded")
    of_a_whole = too_long or error["message"].startswith("the grammar: ")
    assert f"`{param}`" in error["message"] or of_a_whole, error
    outside = "999999 is outside the vocabulary (0 to " in error["message"]
    assert outside == ("999999" in str(fields))
    assert "tool_call" not in error["message"] or param == "messages[0]", "a grammar of ours"


def test_our_names_come_before_those_of_other_servers() -> None:
    body = {"prompt": "a", "repeat_penalty": 2, "n_predict": 5, "guided_json": "", "grammar": "g"}
    asked = parse(json.dumps(body).encode(), CompletionRequest)
    assert (asked.repetition_penalty, asked.max_tokens) == (2, 5)  # type: ignore[attr-defined]
    assert asked.structured_outputs == StructuredOutputs(grammar="g")
    both = {**body, "repetition_penalty": 3, "max_tokens": 4, "structured_outputs": {"json": None}}
    asked = parse(json.dumps(both).encode(), CompletionRequest)
    assert (asked.repetition_penalty, asked.max_tokens) == (3, 4)  # type: ignore[attr-defined]
    assert asked.structured_outputs == StructuredOutputs(grammar="g")

    twice = {**body, "guided_grammar": "g", "ebnf": "g", "random_seed": 3}  # of one meaning
    asked = parse(json.dumps(twice).encode(), CompletionRequest)
    assert (asked.structured_outputs, asked.seed) == (StructuredOutputs(grammar="g"), 3)

    none = parse(json.dumps({"prompt": "a", "grammar": ""}).encode(), CompletionRequest)
    assert none.structured_outputs is None


@pytest.mark.parametrize(("given", "bound"), [(-2, None), (0, None), (1, 1), (9, 9)])
def test_ollama_has_no_bound_below_one(given: int, bound: int | None) -> None:
    messages = [OllamaMessage("user", "Hi")]
    asked = OllamaChatRequest(messages=messages, options={"num_predict": given})
    assert chat_request(asked).max_tokens == bound


@pytest.mark.parametrize("options", [{"repeat_penalty": 0}, {"top_k": -2}, {"foo": 1}], ids=str)
def test_a_wrong_option_of_ollama_s_is_named(options: dict[str, Any]) -> None:
    asked = OllamaChatRequest(messages=[OllamaMessage("user", "Hi")], options={**options})
    with pytest.raises(Problem) as refused:
        chat_request(asked)
    assert (refused.value.status, refused.value.param) == (400, f"options.{next(iter(options))}")


MOST: list[tuple[str, str, Any, Any]] = [  # of a field, and more than that
    (CHAT, "n", 128, 129),
    (CHAT, "stop", ["~"] * 64, ["~"] * 65),
    (CHAT, "stop_token_ids", [5] * 64, [5] * 65),
    (CHAT, "bad_words", ["~"] * 64, ["~"] * 65),
    (CHAT, "top_logprobs", 20, 21),
    (TEXT, "logprobs", 20, 21),
    (TEXT, "prompt_logprobs", 20, 21),
    (TEXT, "prompt", ["a"] * 128, ["a"] * 129),
    ("/v1/embeddings", "input", ["a"], ["a"] * 2049),
]


@pytest.mark.parametrize(("path", "field", "most", "more"), MOST, ids=lambda each: str(each)[:20])
def test_bounds_of_fields(http: httpx2.Client, path: str, field: str, most: Any, more: Any) -> None:
    beside = {"top_logprobs": {"logprobs": True}}.get(field, {})
    within, beyond = (
        http.post(path, json={"model": "pie-tiny", **USUAL[path], **beside, field: value})
        for value in (most, more)
    )
    assert within.status_code == 200, within.text
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/pie-tiny"),
        ("POST", CHAT),
        ("POST", "/v1/messages"),
        ("GET", "/v1/responses/resp_x"),
        ("GET", "/v1/files"),
        ("GET", "/api/tags"),
        ("GET", "/v1/stats"),
    ],
)
def test_a_field_of_the_query_is_known_or_named(
    http: httpx2.Client, method: str, path: str
) -> None:
    body = HI if method == "POST" else None
    usual = http.request(method, path, json=body)
    if path == "/v1/models":
        assert len(http.get(path, params={"limit": 1}).json()["data"]) == 1
    hints = {"beta": "true", "api-version": "1", "client_version": "1", "no_such_field": ""}
    assert http.request(method, path, params=hints, json=body).status_code == usual.status_code
    wrong = http.request(method, path, params={"no_such_field": "1"}, json=body)
    assert (wrong.status_code, "`no_such_field`" in wrong.text) == (400, True), wrong.text


HELLO = [{"role": "user", "content": "Hello " * 9}]
STREAMS: dict[str, tuple[dict[str, Any], bytes]] = {
    CHAT: ({"messages": HELLO, "max_tokens": 400, "ignore_eos": True}, b'data: {"error":'),
    "/v1/completions": (
        {"prompt": "Hi", "max_tokens": 400, "ignore_eos": True},
        b'data: {"error":',
    ),
    "/v1/responses": ({"input": HELLO, "max_output_tokens": 400}, b"event: error\n"),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 400}, b"event: error\n"),
    "/api/chat": ({"messages": HELLO, "options": {"num_predict": 400}}, b'{"error":'),
    "/api/generate": ({"prompt": "Hi", "options": {"num_predict": 400}}, b'{"error":'),
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_failing_stream_ends_with_an_error(gateway: Gateway, server: Server, path: str) -> None:
    fields, begin = STREAMS[path]
    body, read = {"model": "pie-tiny", "stream": True, **fields}, b""
    for _ in range(20):  # until one is cancelled: its program may not run yet, or have ended
        with gateway.http() as http, http.stream("POST", path, json=body) as answer:
            chunks = answer.iter_bytes()
            read = next(chunks)
            with server.client() as client:
                for instance in client.instances():
                    client.attach(instance["id"]).cancel()
            read += b"".join(chunks)
        if begin in read:
            break
    last = read[read.rindex(begin) :]
    assert b"cancelled" in last or b"another client" in last, read
    assert last.strip().count(b"\n") == begin.count(b"\n"), "it is the last event"
    assert (b"event: response.failed" in read) == (path == "/v1/responses")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_fault_of_ours_ends_a_stream_with_an_error() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise TypeError("of ours")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        stream = EventStream(broken(), GatewayConfig(), lambda problem: b"end", b"")
        await stream(scope, receive, send)

    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
        assert (await http.get("/")).content == b"data: 1\n\nend"


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": "x", "foo": 1}, "foo"),
    ({"role": "user"}, "content"),
    ({"content": "x"}, "role"),
    ({"role": "robot", "content": "x"}, "role"),
    ({"role": "user", "content": 1}, "content"),
    ({"role": "user", "content": [{"type": "TEXT"}]}, "content[0].text"),
    ({"role": "user", "content": [{"type": "TEXT", "text": "", "a": 1}]}, "content[0].a"),
    ({"role": "user", "content": [{"type": "sound"}]}, "content[0].type"),
]


@pytest.mark.parametrize(("wrong", "param"), MESSAGES, ids=str)
@pytest.mark.parametrize("api", ["chat/completions", "responses", "messages"])
def test_a_wrong_field_within_is_named(
    http: httpx2.Client, api: str, wrong: dict[str, Any], param: str
) -> None:
    field, text = ("input", "input_text") if api == "responses" else ("messages", "text")
    wrong = json.loads(json.dumps(wrong).replace("TEXT", text))
    nothing_asked = {"role": "user", "content": "x", "annotations": None}
    limit = {"max_tokens": 2} if api == "messages" else {}
    body = {"model": "pie-tiny", field: [nothing_asked, wrong], **limit}
    answer = http.post(f"/v1/{api}", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    place = f"{field}[1].{param}"
    assert error["message"].startswith(f"`{place}`"), error
    assert error.get("param", place) == place  # Anthropic's errors have none


def image(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {**HI, "messages": [{"role": "user", "content": [part]}]}


def test_images_are_refused_by_a_model_that_reads_text(http: httpx2.Client) -> None:
    fetched = http.post(CHAT, json=image("https://example.org/a.png"))
    assert (fetched.status_code, fetched.json()["error"]["param"]) == (400, "messages[0]")
    small = image("data:image/png;base64,aGk=")
    small["messages"][0]["content"][0]["image_url"]["detail"] = "low"
    assert http.post(CHAT, json=small).json()["error"]["param"] == "messages[0].detail"
    small["messages"][0]["content"][0]["image_url"] = "data:image/png;base64,aGk="  # Mistral's form
    assert "reads no images" in http.post(CHAT, json=small).json()["error"]["message"]
    for data in ("aGk=", "aGk=\u00e9", "?"):
        given = http.post(CHAT, json=image(f"data:image/png;base64,{data}"))
        assert given.status_code == 400, given.text


def test_an_image_of_a_response_is_told_by_its_place_in_the_input(http: httpx2.Client) -> None:
    part = {"type": "input_image", "image_url": "https://example.org/a.png"}
    given = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [part]}]
    asked = {"model": "pie-tiny", "instructions": "Be kind.", "input": given}
    error = http.post("/v1/responses", json=asked).json()["error"]
    assert error["param"] == "input[1]"
    assert "`input[1]`: an image is given as" in error["message"]


@pytest.mark.parametrize("arguments", ["[" * 100_000, r'{"a": "\ud800"}', '{"a'])
def test_arguments_that_are_no_json_stay_as_they_were_written(
    http: httpx2.Client, arguments: str
) -> None:
    """A model cut off has written them, and a client sends its conversation back as it is."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    messages = [*HI["messages"], {"role": "assistant", "tool_calls": [call]}]
    counted = http.post("/tokenize", json={"model": "tools", "messages": messages})
    assert counted.status_code == 200, counted.text
    assert counted.json()["count"] > len(arguments) // 100


def test_bodies(http: httpx2.Client) -> None:
    assert http.post(CHAT, content=b"{").status_code == 400
    assert http.post(CHAT, content=b"[" * 100_000).status_code == 400
    for latin in (b'"\xff"', b'{"\xff": ""}', b'{"model": "\xff"}', b'{"audio": "\xff"}'):
        assert http.post(CHAT, content=latin).status_code == 400
    for half in (r"\ud83d", r"a\uDE00b", r"\ud83d\ud83d\ude00"):
        body = json.dumps(HI).replace("Hi", half).encode()
        told = http.post(CHAT, content=body)
        assert (told.status_code, "half of a character" in told.text) == (400, True), told.text
    assert http.post(CHAT, content=json.dumps(HI).replace("Hi", r"\ud83d\ude00")).status_code == 200
    assert http.post(CHAT, content=BOM_UTF8 + json.dumps(HI).encode()).status_code == 200
    missing = http.post(CHAT, json={"model": "pie-tiny"}).json()["error"]
    assert (missing["param"], missing["code"]) == ("messages", "missing_parameter")
    wrong = http.get("/v1/nothing")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (404, "not_found_error")
    assert http.delete(CHAT).status_code == 405


def test_ids_of_requests(http: httpx2.Client) -> None:
    answer = http.post(CHAT, json=HI, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    assert answer.json()["id"] == "chatcmpl-mine"
    assert http.get("/health").headers["x-request-id"] != ""
    assert http.get("/ready").json() == {"status": "ready"}
    assert set(http.get("/version").json()) == {"version", "contract"}


def alive(server: Server) -> int:
    with server.client() as client:
        return len(client.instances())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_ends_its_instance(
    gateway: Gateway, server: Server, stream: bool
) -> None:
    body = {**HI, "max_tokens": 2000, "ignore_eos": True, "n": 4, "stream": stream}
    data = json.dumps(body).encode()
    with gateway.connect() as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        else:
            until(lambda: alive(server))
        assert alive(server) == 1
    until(lambda: not alive(server), 20)


DEAF = b"""
import asyncio

async def main(args):
    await asyncio.sleep(3600)
"""


async def test_an_instance_that_does_not_take_its_images_ends_with_its_request(
    server: Server,
) -> None:
    async with Client(server.endpoint) as client:
        program = await client.upload(DEAF, "deaf")
        launched: list[Instance] = []

        async def launch(argument: str) -> Instance:
            launched.append(await client.launch(program, [argument]))
            return launched[-1]

        images = [b"i" * (1 << 20)] * 40  # more than a mailbox takes
        with anyio.move_on_after(2) as leaves:
            async with Generation(launch, Job("pie-tiny", {}), images):
                pass
        assert leaves.cancelled_caught
        [instance] = launched
        alive = await client.instances()
        assert instance.id not in [each["id"] for each in alive]


def test_limits_of_bodies_and_time(server: Server) -> None:
    limits: dict[str, Any] = {"body_bytes": 1000, "body_seconds": 0.2, "request_seconds": 0.5}
    with Gateway(server, **limits) as gateway, gateway.http() as http:
        assert http.post(CHAT, content=b" " * 1001).status_code == 413
        packed = http.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
        assert (packed.status_code, "gzip" in packed.text) == (415, True)
        assert http.post(CHAT, content=(b" " * 600 for _ in range(3))).status_code == 413
        with gateway.connect() as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
        slow = {**HI, "max_tokens": 2000, "ignore_eos": True, "n": 8}
        answer = http.post(CHAT, json=slow)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timed_out")
        streamed = http.post(CHAT, json={**slow, "stream": True})
        assert "timed_out" in streamed.text
        assert "[DONE]" not in streamed.text
    until(lambda: not alive(server), 20)


def test_an_address_that_is_taken(gateway: Gateway, server: Server, tmp_path: Path) -> None:
    second = Gateway(server, tmp_path, http=gateway.url.removeprefix("http://"))
    assert second.error is not None
    assert "--http" in second.error
    assert second.stop() == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_tells_what_clamped_tokens_are(http: httpx2.Client, stream: bool) -> None:
    body = {"model": "pie-tiny", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    longest = http.get("/v1/models/pie-tiny").json()["max_model_len"]
    ended = {"max_tokens": 10**6, "stop_sequences": ["e"]}
    with http.stream("POST", "/v1/messages", json={**body, **ended}) as answer:
        answer.read()
        left = int(answer.headers["x-pie-max-tokens"])
        assert 0 < longest - left < 40
    for most, told in ((left, None), (left + 1, str(left))):
        fitting = http.post("/v1/messages", json={**body, **ended, "max_tokens": most})
        assert fitting.headers.get("x-pie-max-tokens") == told


def test_what_can_never_work_is_no_reason_to_try_again(http: httpx2.Client) -> None:
    """A request that no message of the protocol holds, and a grammar that is too large."""
    large = "a" * 3_000_000
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": large}}}
    for fields, status in (
        ({"messages": [{"role": "user", "content": large}]}, 413),
        ({"response_format": schema}, 413),
        ({"messages": [{"role": "user", "content": "a" * 1_500_000}]}, 413),
        ({"structured_outputs": {"regex": "a" * 300_000}}, 400),
    ):
        answer = http.post(CHAT, json={**HI, **fields}, timeout=60)
        assert answer.status_code == status, answer.text[:300]
        assert "retry-after" not in answer.headers


WASTE = """
import asyncio

async def main(how: str):
    while how == "cpu":
        pass
    await asyncio.sleep(60)
"""


def test_only_what_passes_is_a_reason_to_try_again(short_folder: Path) -> None:
    """Of the limits of an instance none does; that others hold all there is does."""
    limits = {"cpu_seconds": 0.5}
    with (
        Server(short_folder, max_instances=1, limits=limits, **NO_MODEL) as server,
        Gateway(server, short_folder) as gateway,
        gateway.http() as http,
    ):
        http.post("/v1/programs", params={"name": "waste"}, content=WASTE.encode())
        used = http.post("/v1/inferlets/waste", json={"how": "cpu"})
        assert (used.status_code, "CPU time" in used.text) == (400, True), used.text
        assert "retry-after" not in used.headers
        http.post("/v1/instances", json={"program": "waste", "args": ["--how", "wait"]})
        for path in (CHAT, "/v1/inferlets/waste"):
            full = http.post(path, json=HI if path == CHAT else {"how": "wait"})
            assert (full.status_code, full.headers["retry-after"]) == (503, "1"), full.text


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([Piece(0, "a", 1)], "it begins with Piece"),
        ([Prompt(3), Piece(0, "a", 1), Prompt(3)], "it tells of its prompt twice"),
        ([Prompt(3), ["song", 0]], "Invalid value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_program_that_speaks_otherwise_is_refused(
    events: list[Any], why: str, *, stream: bool
) -> None:
    async def launch(argument: str) -> Seat:
        seat = Seat("one")
        seat.answer([msgspec.Raw(msgspec.json.encode(event)) for event in events], None)
        return seat

    async def read() -> None:
        async with Generation(launch, Job("m", {}, text="x", stream=stream), ()) as generation:
            await generation.prompt()
            assert [event async for event in generation.events()] == []

    with pytest.raises(Problem, match=f"does not speak as agreed: {why}"):
        anyio.run(read)


@pytest.mark.parametrize(
    ("text", "status", "retry"),
    [
        ("node-lost: node n1.1 has ended", 503, True),
        ("worker-lost: it has ended", 503, True),
        ("limit-exceeded: 60 s of CPU time are used up: a loop", 400, False),
        ("limit-exceeded: the grammar: too large", 400, False),
        (str(Shortage("9 instances are alive")), 503, True),
        (str(Shortage("all samplers are in use", "out-of-resources")), 503, True),
        ("out-of-resources: 9 pages asked for, and the model has 8 in all", 503, False),
    ],
)
def test_an_error_of_an_instance_says_whether_it_passes(
    text: str, status: int, retry: bool
) -> None:
    problem = of_text(text)
    assert (problem.status, "retry-after" in headers_of(problem)) == (status, retry)
