"""`/v1/chat/completions`, as OpenAI's own client sees it."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel

MODEL = "pie-tiny"
HI: list[Any] = [{"role": "user", "content": "Hi"}]


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"temperature": 0, "max_tokens": 8, "messages": HI, **fields}
    return client.chat.completions.create(model=MODEL, **fields)


def test_an_answer_is_that_of_the_model(client: openai.OpenAI) -> None:
    answer = ask(client)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content.startswith("Hello!")
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_a_stream_says_the_same_and_how_many_tokens(client: openai.OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage == whole.usage
    assert len({c.id for c in chunks}) == 1
    assert len(chunks) > 5, "it comes in parts"
    with client.chat.completions.stream(model=MODEL, messages=HI, temperature=0) as stream:
        assert {"chunk", "content.delta", "content.done"} <= {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.content


def test_stop_strings_are_left_out(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    cut = whole.split()[1]
    for stop in (cut, ["nowhere", cut]):
        choice = ask(client, stop=stop).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.content == whole[: whole.index(cut)]
        assert choice.stop_reason == cut
    parts = ask(client, stop=cut, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole[: whole.index(cut)]


def test_it_ends_by_itself(client: openai.OpenAI) -> None:
    choice = ask(client, max_tokens=200).choices[0]
    assert choice.finish_reason == "stop"
    assert "<|" not in choice.message.content
    assert ask(client, max_completion_tokens=3).usage.completion_tokens == 3
    more = ask(client, max_tokens=80, extra_body={"ignore_eos": True})
    assert more.usage.completion_tokens == 80
    with_marks = ask(
        client, max_tokens=80, extra_body={"ignore_eos": True, "skip_special_tokens": False}
    )
    assert "<|end|>" in with_marks.choices[0].message.content


def test_log_probabilities(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    assert len(tokens) == 8
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        assert bytes(token.bytes).decode() == token.token
        likely = token.top_logprobs
        assert len(likely) == 3
        assert likely[0].token == token.token, "greedy"
        assert likely[0].logprob == token.logprob <= 0
        assert likely[0].logprob >= likely[1].logprob >= likely[2].logprob
    streamed = [
        token
        for part in ask(client, logprobs=True, top_logprobs=3, stream=True)
        if part.choices[0].logprobs
        for token in part.choices[0].logprobs.content
    ]
    assert streamed == tokens
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_several_choices_and_seeds(client: openai.OpenAI) -> None:
    hot: dict[str, Any] = {"temperature": 3, "n": 3, "seed": 7, "max_tokens": 12}
    first, second = ask(client, **hot), ask(client, **hot)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in second.choices] == texts
    assert ask(client, **{**hot, "seed": 8}).choices[0].message.content != texts[0]
    streamed = ["", "", ""]
    for part in ask(client, **hot, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/api/chat"])
def test_the_seed_minus_one_is_another_each_time(http: httpx2.Client, path: str) -> None:
    hot = {"temperature": 5, "seed": -1}
    body: dict[str, Any] = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": HI}
    limit: dict[str, Any] = {"options": {**hot, "num_predict": 12}, "stream": False}
    body |= limit if path == "/api/chat" else {**hot, "max_tokens": 12}
    found = [http.post(path, json={"model": "pie-tiny", **body}).json() for _ in range(2)]
    first, second = (each["choices"] if "choices" in each else each["message"] for each in found)
    assert first != second


def test_null_content_is_none_to_the_template(http: httpx2.Client) -> None:
    """DeepSeek's asks so whether a message only calls."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def told(**fields: Any) -> str:
        body = {"model": "tools", "max_tokens": 1, "return_token_ids": True}
        said = {"role": "assistant", "tool_calls": [call], **fields}
        answer = http.post("/v1/chat/completions", json={**body, "messages": [*HI, said, *HI]})
        tokens = {"model": "tools", "tokens": answer.json()["prompt_token_ids"]}
        return str(http.post("/detokenize", json=tokens).json()["prompt"])

    nulls = {"content": None, "name": None, "reasoning_content": None, "refusal": None}
    assert told(**nulls) == told()
    assert told().count("(none)") == 1
    assert "(none)" not in told(content="")


def test_biases_rule_tokens_in_and_out(client: openai.OpenAI) -> None:
    first = ask(client, max_tokens=1, extra_body={"return_token_ids": True})
    [token] = first.choices[0].token_ids
    other = ask(client, max_tokens=1, logit_bias={str(token): -100})
    assert other.choices[0].message.content != first.choices[0].message.content
    same = ask(client, logit_bias={"50": 100}, extra_body={"return_token_ids": True})
    assert same.choices[0].token_ids == [50] * 8
    held = ask(client, extra_body={"allowed_token_ids": [60], "return_token_ids": True})
    assert held.choices[0].token_ids == [60] * 8
    assert len(first.prompt_token_ids) == first.usage.prompt_tokens


def test_penalties_stop_repetition(client: openai.OpenAI) -> None:
    def different(**penalty: Any) -> int:
        free = {"return_token_ids": True, "ignore_eos": True, **penalty}
        return len(set(ask(client, max_tokens=60, extra_body=free).choices[0].token_ids))

    plain = different()
    assert different(presence_penalty=2) > plain
    assert different(frequency_penalty=2) > plain
    assert different(repetition_penalty=50) > plain
    assert different(no_repeat_ngram_size=2) > plain
    dry = {"dry_multiplier": 20, "dry_allowed_length": 1, "dry_sequence_breakers": [0]}
    assert different(**dry) > plain


def test_filters_leave_the_likeliest_token(client: openai.OpenAI) -> None:
    greedy = ask(client).choices[0].message.content
    for one in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.0}, {"epsilon_cutoff": 1.0}):
        answer = ask(client, temperature=5, extra_body=one)
        assert answer.choices[0].message.content == greedy, one


class Pair(BaseModel):
    first: Literal["a", "b"]
    second: Literal["a", "b"] | None


def test_a_schema_holds(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    choice = ask(client, max_tokens=50, response_format=form).choices[0]
    assert choice.finish_reason == "stop"
    assert 1 <= json.loads(choice.message.content)["n"] <= 9
    parsed = client.chat.completions.parse(model=MODEL, messages=HI, response_format=Pair)
    assert isinstance(parsed.choices[0].message.parsed, Pair)
    given = client.responses.parse(model=MODEL, input=HI, text_format=Pair)
    assert isinstance(given.output_parsed, Pair)
    limited = ask(client, extra_body={"structured_outputs": {"regex": "[ab]{3}"}})
    assert set(limited.choices[0].message.content) <= {"a", "b"}
    chosen = ask(client, extra_body={"structured_outputs": {"choice": ["so long", "see you"]}})
    assert chosen.choices[0].message.content in ("so long", "see you")
    opened = ask(client, max_tokens=3, response_format={"type": "json_object"})
    assert opened.choices[0].message.content.startswith("{")


def test_roles_and_parts(client: openai.OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Hi"},
    ]
    assert ask(client, messages=messages).choices[0].message.content
    plain = ask(client, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    assert plain.choices[0].message.content == ask(client).choices[0].message.content


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="pie-tiny") as raised:
        client.chat.completions.create(model="gpt-9", messages=HI)
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"
