"""Encoders over HTTP and in programs: what transformers says of whole texts and of pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import torch
import transformers
from support.encoder_checkpoints import make_bert
from support.gateways import Gateway
from support.servers import Server

TEXTS = ["cats purr", "paris is the capital of france", "a b c d e f g h a b c d e f g h", "tax"]
PROGRAM = """
import json
from inferlet import Context, Model, PieError, gather

async def refused(call):
    try:
        await call
    except PieError as error:
        return str(error)

async def main(args):
    texts, pairs = json.loads(args[0]), [["cats", "purr"], ["tax", "law"]]
    bert, cross, classes, tiny = map(Model.load, ("bert", "cross", "classes", "pie-tiny"))
    rows, scores, found, alike = await gather(
        bert.embed(texts), cross.score(pairs), classes.classify(texts), bert.score(pairs)
    )
    wrong = bert.classify(texts), tiny.embed(texts), classes.score(texts), bert.embed(["a " * 40])
    said = [await refused(one) for one in wrong]
    said.append(await refused(Context(bert).fill("a").flush()))
    return {"rows": rows, "scores": scores, "classes": found, "alike": alike, "said": said}
"""


KINDS = {
    "bert": ("BertModel", 2),
    "cross": ("BertForSequenceClassification", 1),
    "classes": ("BertForSequenceClassification", 3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("encoders")
    for name, (kind, labels) in KINDS.items():
        make_bert(found / name, kind, labels)
    return found


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    served = [{"source": str(folder / name)} for name in KINDS]
    with (
        Server(models=[*served, {"source": "pie-tiny", "kv_pages": 64}]) as server,
        Gateway(server) as gateway,
    ):
        gateway.server = server  # type: ignore[attr-defined]
        yield gateway


@cache
def wanted(folder: Path, name: str, text: str | tuple[str, str]) -> Any:
    """transformers' numbers of a text, or of a pair of texts."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / name)
    module = getattr(transformers, KINDS[name][0]).from_pretrained(folder / name).eval()
    pair = (text,) if isinstance(text, str) else text
    inputs = tokenizer(*pair, return_tensors="pt", truncation=True, max_length=32)
    with torch.inference_mode():
        answer = module(**inputs)
    if name == "bert":
        mean = answer.last_hidden_state[0].mean(0)
        return (mean / mean.norm()).numpy()
    logits = answer.logits[0]
    return (logits.sigmoid() if name == "cross" else logits.softmax(0)).numpy()


def near(found: Any, expected: Any) -> bool:
    return bool(np.allclose(found, expected, rtol=0, atol=1e-5))


@pytest.mark.nightly
def test_embeddings_of_users_at_once(gateway: Gateway, folder: Path) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
    expected = [wanted(folder, "bert", text) for text in TEXTS]

    def ask(at: int) -> Any:
        texts = TEXTS[at % 4 :] + TEXTS[: at % 4]
        answer = client.embeddings.create(model="bert", input=texts)
        rows = [each.embedding for each in answer.data]
        return rows[-(at % 4) :] + rows[: -(at % 4)] if at % 4 else rows, answer

    with ThreadPoolExecutor(8) as threads:
        for rows, answer in threads.map(ask, range(12)):
            assert near(rows, expected)
            assert answer.usage.total_tokens == sum(len(text.split()) + 2 for text in TEXTS)
            assert "warning" not in (answer.model_extra or {})


def test_scores_and_classes(http: httpx2.Client, folder: Path) -> None:
    pairs = [("cats", text) for text in TEXTS]
    body = {"model": "cross", "text_1": "cats", "text_2": TEXTS}
    scores = [each["score"] for each in http.post("/v1/score", json=body).json()["data"]]
    expected = [float(wanted(folder, "cross", pair)[0]) for pair in pairs]
    assert near(scores, expected)
    ranked = http.post(
        "/v1/rerank", json={"model": "cross", "query": "cats", "documents": TEXTS}
    ).json()["results"]
    assert [each["index"] for each in ranked] == np.argsort(-np.array(expected)).tolist()
    classes = http.post("/classify", json={"model": "classes", "input": TEXTS}).json()["data"]
    for each, text in zip(classes, TEXTS, strict=True):
        probabilities = wanted(folder, "classes", text)
        assert near(each["probs"], probabilities)
        assert (each["label"], each["num_classes"]) == (f"LABEL_{probabilities.argmax()}", 3)
    logits = http.post("/pooling", json={"model": "classes", "input": TEXTS[:1]}).json()
    done = torch.tensor(logits["data"][0]["data"]).softmax(0)
    assert near(done, wanted(folder, "classes", TEXTS[0]))
    pooled = http.post("/pooling", json={"model": "bert", "input": TEXTS[0]}).json()["data"]
    vector = np.array(pooled[0]["data"])
    assert near(vector / np.linalg.norm(vector), wanted(folder, "bert", TEXTS[0]))
    assert np.linalg.norm(vector) != pytest.approx(1)


def test_texts_that_are_too_long(http: httpx2.Client, folder: Path) -> None:
    long = "a b c d " * 20
    body: dict[str, Any] = {"model": "bert", "input": [TEXTS[0], long]}
    refused = http.post("/v1/embeddings", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert "32 tokens; input 1" in refused.json()["error"]["message"]
    cut = http.post("/v1/embeddings", json=body | {"truncate_prompt_tokens": -1}).json()
    assert near(cut["data"][1]["embedding"], wanted(folder, "bert", long))
    assert near(
        http.post("/api/embed", json=body).json()["embeddings"][1], wanted(folder, "bert", long)
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "cross", "input": "a"}),
        ("/v1/score", {"model": "classes", "text_1": "a", "text_2": "b"}),
        ("/classify", {"model": "bert", "input": "a"}),
        ("/v1/completions", {"model": "bert", "prompt": "a"}),
        ("/v1/embeddings", {"model": "bert", "input": [99]}),
    ],
)
def test_what_a_model_was_not_made_for(
    http: httpx2.Client, path: str, body: dict[str, Any]
) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400, refused.text


def test_a_chat_models_vectors_say_what_they_are(http: httpx2.Client) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/api/embed", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        answer = http.post(path, json={"model": "pie-tiny", **body}).json()
        assert "not made for embeddings" in answer["warning"]


def test_programs(gateway: Gateway, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "encoding.py"
    file.write_text(PROGRAM)
    with gateway.server.client() as client:  # type: ignore[attr-defined]
        texts = json.dumps(TEXTS * 70)  # in several calls
        found = json.loads(client.launch(client.upload(file), [texts]).result())
    assert near(found["rows"], [wanted(folder, "bert", text) for text in TEXTS] * 70)
    pairs = [("cats", "purr"), ("tax", "law")]
    assert near(found["scores"], [wanted(folder, "cross", pair)[0] for pair in pairs])
    for row, text in zip(found["classes"], TEXTS * 70, strict=True):
        assert near(list(row.values()), wanted(folder, "classes", text))
    sides = [[wanted(folder, "bert", text) for text in pair] for pair in pairs]
    assert near(found["alike"], [one @ other for one, other in sides])
    assert [said.partition(":")[0] for said in found["said"]] == ["unsupported"] * 3 + [
        "invalid-argument",
        "unsupported",
    ]
