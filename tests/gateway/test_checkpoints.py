"""Adapters, images, prompt log-probabilities and the prefix cache, against `transformers`."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import make_adapter, make_llama
from support.gateways import Gateway
from support.image_checkpoints import (
    IMAGE_PAD,
    IMAGE_TOKEN,
    PATCHES,
    as_file,
    make_llava,
    make_qwen_vl,
    picture,
    qwen_vl_inputs,
)
from support.servers import Server
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

TOKENS = 8
HOLE = 300
HI: list[Any] = [{"role": "user", "content": "the old house"}]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<|end|>{% endfor %}<|assistant|>"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("plain") / "model")


@pytest.fixture(scope="module")
def adapter(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(plain, tmp_path_factory.mktemp("adapter") / "lora")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By transformers' towers: one that takes as many embeds of each image, and one that takes more
    of a larger one, with rows and columns, and features for later layers.
    """
    folders = {}
    for name, make, place in (
        ("seeing", make_llava, "<image>"),
        ("looking", make_qwen_vl, "<|image_pad|>"),
    ):
        folders[name] = make(tmp_path_factory.mktemp(name) / "model")
        tokenizer = AutoTokenizer.from_pretrained(folders[name])
        tokenizer.chat_template = TEMPLATE.replace("<image>", place)
        tokenizer.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="module")
def padded(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its likeliest ids are no tokens: rows behind those of the tokenizer, and one between them.
    Its files begin with marks of byte order, and one of its ends is outside the vocabulary.
    """
    folder = tmp_path_factory.mktemp("padded") / "model"
    shutil.copytree(plain, folder)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["lm_head.weight"]
    strong = 99 * torch.randn_like(head[:1])
    head[HOLE], more = strong, [strong, -strong] * 32
    tensors["lm_head.weight"] = torch.cat([head, *more])
    embedded = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = torch.cat([embedded, embedded[:64]])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        found = json.loads((folder / name).read_text())
        if name == "config.json":
            found["vocab_size"] += 64
            ends = {"eos_token_id": [found["eos_token_id"], 10 * found["vocab_size"]]}
            (folder / "generation_config.json").write_text(json.dumps(ends))
        if name == "tokenizer.json":
            vocabulary = found["model"]["vocab"]
            [gone] = (text for text, token in vocabulary.items() if token == HOLE)
            del vocabulary[gone]
            found["model"]["merges"] = [
                each for each in found["model"]["merges"] if gone not in ("".join(each), *each)
            ]
        (folder / name).write_text(json.dumps(found), encoding="utf-8-sig")
    return folder


@pytest.fixture(scope="module")
def gateway(plain: Path, adapter: Path, seeing: dict[str, Path], padded: Path) -> Iterator[Gateway]:
    common = {"page_size": 8, "kv_pages": 128}
    models = [
        {"source": str(plain), "name": "plain", "adapters": {"tuned": str(adapter)}, **common},
        *({"source": str(folder), "name": name, **common} for name, folder in seeing.items()),
        {"source": str(padded), "name": "padded", **common},
    ]
    with Server(models=models) as server, Gateway(server) as gateway:
        yield gateway


def chat(client: openai.OpenAI, model: str, messages: list[Any] = HI, **fields: Any) -> Any:
    extra = {"return_token_ids": True, "ignore_eos": True}
    return client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=TOKENS, extra_body=extra, **fields
    )


@torch.inference_mode()
def continued(model: Any, tokens: list[int], **more: Any) -> list[int]:
    output = model.generate(
        input_ids=torch.tensor([tokens]),
        do_sample=False,
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        **more,
    )
    found: list[int] = output[0, len(tokens) :].tolist()
    return found


@pytest.mark.nightly
def test_what_no_pool_can_hold_is_no_reason_to_try_again(client: openai.OpenAI) -> None:
    """128 pages of 8 tokens, of which equal prompts share the full ones."""
    for fields in ({"prompt": [5] * 1000, "n": 8}, {"prompt": [5] * 50, "n": 127}):
        with pytest.raises(openai.BadRequestError, match="pages of KV memory") as raised:
            client.completions.create(model="plain", max_tokens=1, **fields)  # type: ignore[call-overload]
        assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 1},
        {"temperature": 2, "seed": 2, "top_k": 3, "top_p": 0.9},
        {"temperature": 1, "seed": 3, "repetition_penalty": 1.5, "typical_p": 0.9},
        {"structured_outputs": {"regex": ".{30}"}},
        {"n": 2, "temperature": 1, "stream": False, "logit_bias": {str(HOLE): 50}},
    ],
    ids=str,
)
def test_rows_without_a_token_are_never_chosen(
    http: httpx2.Client, padded: Path, fields: Any
) -> None:
    found = json.loads((padded / "tokenizer.json").read_text("utf-8-sig"))
    known = {*found["model"]["vocab"].values(), *(each["id"] for each in found["added_tokens"])}
    rows = json.loads((padded / "config.json").read_text("utf-8-sig"))["vocab_size"]
    assert HOLE not in known
    prompt = [5, HOLE, rows - 1, 9]
    body = {"model": "padded", "prompt": prompt, "max_tokens": TOKENS, "logprobs": 5, **fields}
    more = {"ignore_eos": True, "return_token_ids": True}
    answer = http.post("/v1/completions", json={**body, **more})
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert len(choice["token_ids"]) == TOKENS
        assert known.issuperset(choice["token_ids"])
        assert all("" not in top for top in choice["logprobs"]["top_logprobs"])
    text = http.post("/detokenize", json={"model": "padded", "tokens": prompt}).json()
    alone = http.post("/detokenize", json={"model": "padded", "tokens": [5, 9]}).json()
    assert text == alone


def test_a_lora_adapter_by_the_model_s_name(
    client: openai.OpenAI, plain: Path, adapter: Path
) -> None:
    names = {card.id: card.model_dump() for card in client.models.list()}
    assert names["tuned"]["parent"] == "plain"
    base, tuned = chat(client, "plain"), chat(client, "tuned")
    prompt = base.prompt_token_ids
    assert tuned.prompt_token_ids == prompt
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    assert base.choices[0].token_ids == continued(model, prompt)
    from peft import PeftModel  # takes seconds: only where it is used

    with_lora = PeftModel.from_pretrained(model, str(adapter)).eval()
    assert tuned.choices[0].token_ids == continued(with_lora, prompt)
    assert tuned.choices[0].token_ids != base.choices[0].token_ids
    in_ids = client.completions.create(
        model="tuned",
        prompt=prompt,
        temperature=0,
        max_tokens=TOKENS,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    assert in_ids.choices[0].model_dump()["token_ids"] == tuned.choices[0].token_ids


def test_a_lora_adapter_comes_and_goes_over_http(
    client: openai.OpenAI, http: httpx2.Client, plain: Path, adapter: Path, tmp_path: Path
) -> None:
    tuned, same = chat(client, "tuned"), chat(client, "plain")
    other = make_adapter(plain, tmp_path / "other", seed=5)

    def load(folder: Path, **fields: str) -> httpx2.Response:
        files = {
            field: (folder / name).open("rb")
            for field, name in (
                ("adapter_config", "adapter_config.json"),
                ("adapter_model", "adapter_model.safetensors"),
            )
        }
        return http.post("/v1/load_lora_adapter", data=fields, files=files)

    for folder, differs in ((adapter, False), (other, True)):
        version = load(folder, lora_name="mine").json()["version"]
        found = chat(client, "mine")
        assert found.system_fingerprint == f"{same.system_fingerprint}-{version[:12]}"
        tokens = found.choices[0].token_ids
        assert (tokens != tuned.choices[0].token_ids) is differs
        for part in chat(client, "mine", stream=True):
            assert part.system_fingerprint == found.system_fingerprint
    text = client.completions.create(model="mine", prompt="x", max_tokens=1)
    assert text.system_fingerprint == found.system_fingerprint
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).is_success
    with pytest.raises(openai.NotFoundError):
        chat(client, "mine")

    by_path = {"lora_name": "shared", "lora_path": str(other)}
    assert http.post("/v1/load_lora_adapter", json=by_path).is_success
    assert http.post("/v1/load_lora_adapter", json=by_path).status_code == 409
    assert chat(client, "shared").choices[0].token_ids == tokens
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "shared"}).is_success
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "shared"}).status_code == 404

    form = {"lora_name": (None, "mine")}
    assert http.post("/v1/load_lora_adapter", files=form).status_code == 400
    assert load(adapter, lora_name="tuned").status_code == 409
    assert load(adapter, lora_name="a b").status_code == 400
    (adapter / "adapter_model.safetensors").rename(tmp_path / "away")
    (adapter / "adapter_model.safetensors").write_bytes(b"no tensors")
    assert load(adapter, lora_name="mine").status_code == 400
    (tmp_path / "away").rename(adapter / "adapter_model.safetensors")


def llava_inputs(folder: Path, parts: list[Any]) -> dict[str, Any]:
    """What transformers takes for text with an image within."""
    first, image, last = parts
    steps = json.loads((folder / "preprocessor_config.json").read_text())
    processor = CLIPImageProcessorPil(size=steps["size"], crop_size=steps["crop_size"])
    pixels = processor(image, return_tensors="pt")["pixel_values"]
    tokens = [*first, *[IMAGE_TOKEN] * PATCHES, *last]
    return {"input_ids": torch.tensor([tokens]), "pixel_values": pixels}


@pytest.mark.parametrize(
    ("name", "inputs_of"), [("seeing", llava_inputs), ("looking", qwen_vl_inputs)]
)
def test_an_image_of_a_conversation(
    name: str,
    inputs_of: Any,
    client: openai.OpenAI,
    claude: anthropic.Anthropic,
    seeing: dict[str, Path],
) -> None:
    image = picture(40, 30)
    data = base64.b64encode(as_file(image)).decode()
    parts: list[Any] = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "text", "text": " now"},
    ]
    answer = chat(client, name, [{"role": "user", "content": parts}])
    tokenizer = AutoTokenizer.from_pretrained(seeing[name])
    before, after = (
        tokenizer.encode(text, add_special_tokens=False)
        for text in ("<|user|>see ", " now<|end|><|assistant|>")
    )
    assert not {IMAGE_TOKEN, IMAGE_PAD} & {*before, *after}, "here it would be another image"
    given = inputs_of(seeing[name], [before, image, after])
    (tokens,) = given.pop("input_ids").tolist()
    given.pop("attention_mask", None)
    assert answer.usage.prompt_tokens == len(tokens)
    model = AutoModelForImageTextToText.from_pretrained(seeing[name], dtype=torch.float32).eval()
    assert answer.choices[0].token_ids == continued(model, tokens, **given)
    other = base64.b64encode(as_file(picture(40, 30, seed=1))).decode()
    parts[1] = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{other}"}}
    again = chat(client, name, [{"role": "user", "content": parts}])
    assert again.choices[0].token_ids != answer.choices[0].token_ids
    blocks: list[Any] = [
        {"type": "text", "text": "see "},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "text", "text": " now"},
    ]
    asked: list[Any] = [{"role": "user", "content": blocks}]
    told = claude.messages.create(model=name, max_tokens=TOKENS, messages=asked)
    assert told.usage.input_tokens == len(tokens)
    bad: list[Any] = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.BadRequestError):
        chat(client, name, [{"role": "user", "content": bad}])


def test_log_probabilities_of_a_prompt(client: openai.OpenAI, plain: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(plain)
    words = tokenizer.encode(
        "the old house is by the sea, and so on and on", add_special_tokens=False
    )
    prompt = (words * 4)[:50]
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    with torch.inference_mode():
        logs = model(torch.tensor([prompt])).logits.log_softmax(-1)[0]
    expected = [logs[at, token].item() for at, token in enumerate(prompt[1:])]
    likeliest = logs.max(-1).values.tolist()

    def ask(**fields: Any) -> Any:
        return client.completions.create(
            model="plain", prompt=prompt, temperature=0, echo=True, logprobs=2, **fields
        )

    told = ask(max_tokens=0).choices[0]
    assert told.logprobs.token_logprobs[0] is told.logprobs.top_logprobs[0] is None
    assert told.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-3)
    for at, top in enumerate(told.logprobs.top_logprobs[1:]):
        assert max(top.values()) == pytest.approx(likeliest[at], abs=1e-3)
    assert "".join(told.logprobs.tokens) == told.text
    more = ask(max_tokens=3).choices[0]
    assert more.logprobs.token_logprobs[1:50] == pytest.approx(expected, abs=1e-3)
    assert len(more.logprobs.tokens) == 53
    assert more.logprobs.token_logprobs[50] == pytest.approx(likeliest[49], abs=1e-3)
    assert more.logprobs.text_offset[50] == len(told.text)
    streamed = [part.choices[0] for part in ask(max_tokens=3, stream=True)]
    found = [log for part in streamed if part.logprobs for log in part.logprobs.token_logprobs]
    assert found[1:] == pytest.approx(more.logprobs.token_logprobs[1:], abs=1e-3)


def test_tokens_that_the_prefix_cache_had(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    text = "and the old house stands by the sea where the wind blows all day long " * 2
    long: list[Any] = [{"role": "user", "content": text}]

    def cached(**fields: Any) -> int:
        answer = chat(client, "plain", long, **fields)
        count: int = answer.usage.prompt_tokens_details.cached_tokens
        assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)
        return count

    assert cached() == 0
    prompt = len(chat(client, "plain", long).prompt_token_ids)
    full = (prompt - 1) // 8 * 8
    assert cached(prompt_cache_key="any") == full
    assert cached(n=3) == full, "the prompt is there once"
    *_, last = chat(client, "plain", long, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens == full
    responses = client.responses.create(model="plain", input=text, max_output_tokens=2)
    assert responses.usage is not None
    assert responses.usage.input_tokens_details.cached_tokens == full
    used = claude.messages.create(model="plain", max_tokens=2, messages=long).usage
    assert used.cache_read_input_tokens == full
    assert used.input_tokens == prompt - full
