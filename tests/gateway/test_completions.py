"""`/v1/completions` and `/v1/models`, as OpenAI's own client sees them."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Completion
from support.gateways import Gateway
from support.servers import Server

MODEL = "pie-tiny"


def ask(client: openai.OpenAI, prompt: Any = "Thessel is", **fields: Any) -> Any:
    fields = {"temperature": 0, "max_tokens": 6, **fields}
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


def joined(answer: Any) -> str:
    """The text of a streamed answer, or of a whole one."""
    parts = [answer] if isinstance(answer, Completion) else answer
    return "".join(part.choices[0].text for part in parts)


def test_a_text_goes_on(client: openai.OpenAI) -> None:
    answer = ask(client)
    assert answer.object == "text_completion"
    assert answer.choices[0].text.startswith(" ")
    assert answer.usage.completion_tokens == 6
    assert joined(ask(client, stream=True)) == answer.choices[0].text
    assert len(ask(client, max_tokens=openai.omit, temperature=1, seed=1).choices[0].text) > 6


def test_prompts_are_texts_or_tokens(client: openai.OpenAI) -> None:
    first, second = (ask(client, prompt) for prompt in ("Thessel is", "Once upon"))
    both = ask(client, ["Thessel is", "Once upon"])
    assert [choice.text for choice in both.choices] == [joined(first), joined(second)]
    told = ask(client, extra_body={"return_token_ids": True}).choices[0]
    ids = told.prompt_token_ids
    assert len(told.token_ids) == 6
    for prompt in (ids, [ids]):
        assert ask(client, prompt).choices[0].text == first.choices[0].text
    assert both.usage.prompt_tokens == first.usage.prompt_tokens + second.usage.prompt_tokens
    streamed = ["", ""]
    for part in ask(client, ["Thessel is", "Once upon"], stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in both.choices]


def test_who_scores_a_prompt_has_the_token_after_it_even_if_it_is_the_end(
    client: openai.OpenAI,
) -> None:
    more = {"return_token_ids": True}
    whole = ask(client, max_tokens=400, extra_body=more).choices[0]
    assert whole.finish_reason == "stop"
    ids = [*whole.prompt_token_ids, *whole.token_ids]
    scored = ask(client, ids, echo=True, logprobs=1, max_tokens=1).choices[0].logprobs
    assert len(scored.token_logprobs) == len(ids) + 1


def test_the_prompt_is_echoed(client: openai.OpenAI) -> None:
    plain = "Thessel is" + joined(ask(client))
    for stream in (False, True):
        assert joined(ask(client, echo=True, stream=stream)) == plain
    assert ask(client, echo=True, max_tokens=0).choices[0].text == "Thessel is"


def test_the_likeliest_of_several(client: openai.OpenAI) -> None:
    hot: dict[str, Any] = {"temperature": 3.0, "seed": 5, "max_tokens": 4, "logprobs": 0}
    every = ask(client, n=5, **hot).choices
    means = {choice.text: sum(choice.logprobs.token_logprobs) / 4 for choice in every}
    best = ask(client, best_of=5, n=2, **hot)
    assert [choice.text for choice in best.choices] == sorted(means, key=lambda t: -means[t])[:2]
    assert best.usage.completion_tokens == 20, "all of them were computed"


def test_rules_that_leave_no_token_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(client, extra_body={"no_repeat_ngram_size": 1, "allowed_token_ids": [60]})


def test_models(client: openai.OpenAI) -> None:
    card, other, alias, caller = client.models.list()
    assert (alias.id, alias.root) == ("gpt-4o", MODEL)  # type: ignore[attr-defined]
    assert (caller.id, caller.root) == ("caller", "tools")  # type: ignore[attr-defined]
    answer = client.completions.create(model="gpt-4o", prompt="Thessel is", max_tokens=1)
    assert answer.model == "gpt-4o"
    assert other.id == "tools"
    assert (card.id, card.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL) == card
    assert client.get("/models/", cast_to=object)["object"] == "list"  # type: ignore[index]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize("prompt", ["Once upon", "é😀 Once", [0, 300, 301]])
def test_offsets_index_the_text(client: openai.OpenAI, prompt: Any) -> None:
    """Also where the token that begins every text is not in it, and characters have several."""
    choice = ask(client, prompt, echo=True, logprobs=0, max_tokens=4).choices[0]
    told: Any = choice.logprobs
    assert told.text_offset == sorted(told.text_offset)
    for at, token in zip(told.text_offset, told.tokens, strict=True):
        if "\ufffd" not in token and not (at == 0 and isinstance(prompt, str)):
            assert choice.text[at:].startswith(token)
    assert all(len(each) == 1 for each in told.top_logprobs[1:])


def post(http: httpx2.Client, path: str, **body: Any) -> Any:
    return http.post(path, json={"model": MODEL, **body}).json()


def test_tokens_of_a_text_and_back(http: httpx2.Client) -> None:
    ask = partial(post, http)
    told = ask("/tokenize", prompt="Once upon a time", return_token_strs=True)
    assert told["count"] == len(told["tokens"]) > 1
    plain = ask("/tokenize", prompt="Once upon a time", add_special_tokens=False)["tokens"]
    assert told["tokens"] == [0, *plain]
    assert "".join(told["token_strs"][1:]) == "Once upon a time"
    assert ask("/detokenize", tokens=plain) == {"prompt": "Once upon a time"}
    assert ask("/tokenize", prompt="", add_special_tokens=False)["tokens"] == []
    info = http.get("/tokenizer_info", params={"model": MODEL}).json()
    begin, end = info["bos_token"], info["eos_token"]
    for text, token in ((begin, 0), (end, 1)):
        assert ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"] == [token]
    hi = [{"role": "user", "content": "Hi"}]
    chat = ask("/tokenize", messages=hi)["tokens"]
    assert len(ask("/tokenize", messages=hi, add_generation_prompt=False)["tokens"]) < len(chat)
    assert ask("/tokenize")["error"]["param"] == "prompt"


def test_a_prompt_that_is_too_long_is_counted(http: httpx2.Client) -> None:
    """One counts to find out by how much to cut."""
    text = "one two three " * 5000
    said, ask = [{"role": "user", "content": text}], partial(post, http)
    told = ask("/tokenize", prompt=text)
    assert told["count"] == len(told["tokens"]) > told["max_model_len"]
    chat = ask("/tokenize", messages=said)["count"]
    assert chat > told["count"]
    assert ask("/v1/messages/count_tokens", messages=said) == {"input_tokens": chat}
    assert ask("/v1/responses/input_tokens", input=said)["input_tokens"] == chat


def test_a_missing_model_is_named_where_there_are_several(http: httpx2.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "Hi"})
    assert answer.status_code == 400
    assert "one of pie-tiny, tools" in answer.json()["error"]["message"]


def test_thousands_of_choices(client: openai.OpenAI) -> None:
    options = [f"{number} (of *many*)" for number in range(3000)]
    outputs = {"structured_outputs": {"choice": options}}
    assert ask(client, max_tokens=40, extra_body=outputs).choices[0].text in options


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"guided_choice": ["red"]}, "red"),
        ({"guided_regex": "[0-9]a"}, None),
        ({"guided_grammar": 'start: "x"'}, "x"),
        ({"grammar": 'root ::= "y"'}, "y"),
        ({"grammar": 'start: "y"'}, "y"),
        ({"guided_grammar": 'root ::= "y"'}, "y"),
        ({"guided_json": {"const": 7}}, "7"),
        ({"json_schema": {"const": 7}, "cache_prompt": True, "repeat_penalty": 1.1}, "7"),
    ],
)
def test_other_names_of_what_a_text_looks_like(
    client: openai.OpenAI, fields: dict[str, Any], text: str | None
) -> None:
    said = ask(client, extra_body=fields).choices[0].text
    assert said == text or (text is None and len(said) == 2)
    with pytest.raises(openai.BadRequestError, match="says what the text"):
        ask(client, extra_body={**fields, "structured_outputs": {"choice": ["a"]}})
    few = ask(client, max_tokens=openai.omit, extra_body={"n_predict": 3, "ignore_eos": True})
    assert few.usage.completion_tokens == 3


def told(client: openai.OpenAI, prompt: Any = "Thessel is", **fields: Any) -> Any:
    """The choice with its tokens; fields are vLLM's and llama.cpp's."""
    max_tokens = fields.pop("max_tokens", 6)
    body = {"return_token_ids": True, **fields}
    return ask(client, prompt, max_tokens=max_tokens, extra_body=body).choices[0]


@pytest.mark.parametrize("stream", [False, True])
def test_no_end_comes_before_min_tokens(client: openai.OpenAI, stream: bool) -> None:
    plain = told(client)
    end, text = plain.token_ids[1], plain.text
    assert told(client, stop_token_ids=[end]).token_ids == plain.token_ids[:1]
    longer = told(client, stop_token_ids=[end], min_tokens=4).token_ids
    assert len(longer) >= 4
    assert end not in longer[:4]
    fields = {"stop": text[1:3], "stream": stream}
    assert len(told(client, min_tokens=6, stop=text[1:3]).token_ids) == 6
    body = {"min_tokens": 6, "include_stop_str_in_output": True}
    assert joined(ask(client, extra_body=body, **fields)) == text
    del body["min_tokens"]
    assert joined(ask(client, extra_body=body, **fields)) == text[:3]


def test_bad_words_do_not_come(client: openai.OpenAI) -> None:
    plain = told(client, max_tokens=12)
    for word in (plain.text.split()[0], " ".join(plain.text.split()[:2])):
        assert word not in told(client, max_tokens=12, bad_words=[word]).text
    within = told(client, max_tokens=12, bad_words=["".join(plain.text.split()[:2]), "zzz"])
    assert within.text == plain.text


def test_log_probabilities_of_prompts_as_vllm_has_them(client: openai.OpenAI) -> None:
    ids = told(client).prompt_token_ids
    echoed = ask(client, ids, echo=True, logprobs=1, extra_body={"prompt_logprobs": 3}).choices[0]
    first, *rest = echoed.prompt_logprobs
    assert first is None
    assert len(rest) == len(ids) - 1
    logs = echoed.logprobs
    of_the_prompt = (each[1 : len(ids)] for each in (logs.token_logprobs, logs.top_logprobs))
    for token, each, own, top in zip(ids[1:], rest, *of_the_prompt, strict=True):
        assert each[str(token)]["logprob"] == own
        assert len(top) <= 2  # the likeliest, and the token itself
        ranks = {entry["rank"] for entry in each.values()}
        assert {1, 2, 3} <= ranks <= {1, 2, 3, None}
    chat: Any = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=1,
        extra_body={"prompt_logprobs": 0, "return_token_ids": True},
    )
    assert [len(each) for each in chat.prompt_logprobs[1:]] == [1] * (
        len(chat.prompt_token_ids) - 1
    )


def test_the_end_of_a_prompt_is_kept_and_its_beginning_left_out(client: openai.OpenAI) -> None:
    ids = told(client).prompt_token_ids
    assert told(client, truncate_prompt_tokens=2).prompt_token_ids == ids[-2:]
    assert told(client, truncate_prompt_tokens=-1).prompt_token_ids == ids
    with pytest.raises(openai.BadRequestError, match="`truncate_prompt_tokens`: at least 1"):
        told(client, truncate_prompt_tokens=0)
    assert told(client, add_special_tokens=False).prompt_token_ids == ids[1:]
    assert told(client, priority=3).prompt_token_ids == ids


def test_each_part_of_a_stream_has_the_usage_so_far(client: openai.OpenAI) -> None:
    body = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=6,
        stream=True,
        extra_body=body,
    )
    for parts in (list(ask(client, stream=True, extra_body=body)), list(chat)):
        counts = [part.usage.completion_tokens for part in parts if part.usage]
        assert counts == sorted(counts)
        assert counts[-1] == 6 or parts[-1].choices == []
        assert len(counts) >= len(parts) - 1  # not that of the role


def test_minus_one_is_no_bound(client: openai.OpenAI) -> None:
    assert told(client, length_penalty=1.0, mirostat=0, detokenize=True, id_slot=-1).text
    assert ask(client, extra_body={"max_tokens": -1}, stop="e").choices[0].finish_reason == "stop"
    schema = {"properties": {"a": {"const": 1}}, "required": ["a"]}
    whole = {"schema": {"type": "object", **schema}}
    for response_format in (
        {"type": "json_object", "schema": schema},
        {"type": "json_schema", "json_schema": whole},
    ):
        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            extra_body={"max_tokens": -1, "response_format": response_format},
        )
        assert chat.choices[0].message.content == '{"a": 1}'


def test_fewer_tokens_than_a_form_forces_are_refused_with_their_number(
    client: openai.OpenAI,
) -> None:
    fields: dict[str, Any] = {"extra_body": {"guided_regex": "Argon is a city of Thessel(s?)"}}
    with pytest.raises(openai.BadRequestError, match="at least") as caught:
        ask(client, **fields)
    assert caught.value.param == "max_tokens"
    least = int(re.findall("at least (\\d+)", str(caught.value))[0])
    assert ask(client, max_tokens=least, **fields).choices[0].text.startswith("Argon is a city")
    with pytest.raises(openai.BadRequestError, match="at least"):
        ask(client, max_tokens=least - 1, **fields)


@pytest.mark.parametrize("echo", [False, True])
def test_the_tokens_of_prompts_are_streamed_once(client: openai.OpenAI, echo: bool) -> None:
    asked: dict[str, Any] = {"model": "pie-tiny", "prompt": ["One", "Two"], "max_tokens": 4, "n": 2}
    extra = {"return_token_ids": True, "ignore_eos": True}
    whole = client.completions.create(**asked, echo=echo, extra_body=extra)
    parts = client.completions.create(**asked, echo=echo, extra_body=extra, stream=True)
    found = defaultdict[int, list[Any]](list)
    for part in parts:
        found[part.choices[0].index].append(part.choices[0].model_extra.get("prompt_token_ids"))
    for choice in whole.choices:
        first, *others = found[choice.index]
        assert first == choice.prompt_token_ids
        assert not any(others)


def test_a_long_answer_is_told_in_parts(short_folder: Path) -> None:
    limits = {"message_bytes": 18_000}  # the vocabulary has more
    with (
        Server(short_folder, limits=limits) as server,
        Gateway(server) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        asked = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
        whole = ask(client, logprobs=5, **asked).choices[0]
        assert len(whole.logprobs.tokens) == 400
        assert whole.text == joined(ask(client, stream=True, **asked))
