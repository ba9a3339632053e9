"""Embeddings are `transformers`' hidden states, pooled as the checkpoint says; what is made of
them; and texts before a `suffix`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import numpy as np
import openai
import pytest
import torch
from support.gateways import Gateway
from support.servers import EMBEDDED, Server
from transformers import AutoModel, AutoTokenizer

from pie_gateway.schemas.embeddings import ScoreRequest

TEXTS = ["The capital of Thessel is Argon.", "Bread", "The old house " * 100]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Of the embedded model, and of checkpoints that say how they are pooled."""
    folder = tmp_path_factory.mktemp("pooled")
    for name, kinds in (("mean", ["Transformer", "Pooling", "Normalize"]), ("dense", ["Dense"])):
        shutil.copytree(EMBEDDED, folder / name)
        modules = [{"path": f"{at}_{kind}", "type": f"st.{kind}"} for at, kind in enumerate(kinds)]
        (folder / name / "modules.json").write_text(json.dumps(modules))
    tokenizer = folder / "mean/tokenizer.json"
    text = tokenizer.read_text()
    for old, new in (("[CALL]", "prefix"), ("[HEAD]", "suffix"), ("[END]", "middle")):
        text = text.replace(json.dumps(old), json.dumps(f"<fim_{new}>"))
    tokenizer.write_text(text)
    (folder / "mean/1_Pooling").mkdir()
    (folder / "mean/1_Pooling/config.json").write_text(json.dumps(MEAN))
    sources = ["pie-tiny", str(folder / "mean"), str(folder / "dense")]
    models = [{"source": source, "dtype": "float32", "kv_pages": 256} for source in sources]
    with Server(models=models) as server, Gateway(server) as gateway:
        yield gateway


def states(text: Any) -> Any:
    torch.set_num_threads(1)
    model = AutoModel.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    tokens = tokenizer(text)["input_ids"] if isinstance(text, str) else text
    with torch.inference_mode():
        return model(torch.tensor([tokens])).last_hidden_state[0].numpy()


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def near(found: Any, wanted: Any, atol: float = 1e-4) -> bool:
    return bool(np.allclose(found, wanted, rtol=0, atol=atol))


def test_vectors_are_pooled_hidden_states(client: openai.OpenAI) -> None:
    wanted = [states(text) for text in TEXTS]
    pools: dict[str, Any] = {"pie-tiny": lambda s: s[-1], "mean": lambda s: s.mean(0)}
    for model, pool in pools.items():
        answer = client.embeddings.create(model=model, input=TEXTS)
        for each, state in zip(answer.data, wanted, strict=True):
            assert near(each.embedding, unit(pool(state)), atol=1e-4)
        assert answer.usage.total_tokens == sum(map(len, wanted))
        assert answer.to_dict()["id"], "Mistral's client wants one"
        assert len(wanted[-1]) > 256  # runs in parts


def test_forms_of_inputs_and_answers(client: openai.OpenAI) -> None:
    tokens: Any = AutoTokenizer.from_pretrained(EMBEDDED)(TEXTS[0])["input_ids"]
    [plain] = client.embeddings.create(model="mean", input=TEXTS[0]).data
    for given in (tokens, [tokens]):
        found = client.embeddings.create(model="mean", input=given, encoding_format="float")
        assert found.data[0].embedding == pytest.approx(plain.embedding)
    [short] = client.embeddings.create(model="mean", input=TEXTS[0], dimensions=8).data
    assert near(short.embedding, unit(np.array(plain.embedding[:8])), atol=1e-6)
    [cut] = client.embeddings.create(
        model="mean", input=TEXTS[0], extra_body={"truncate_prompt_tokens": 4}
    ).data
    assert near(cut.embedding, unit(states(tokens[:4]).mean(0)), atol=1e-4)


def test_layers_that_there_are_not_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="dense", input="x")


def test_a_request_has_as_many_texts_as_openai_takes() -> None:
    asked = {"text_1": "a", "text_2": ["b"] * 2048}
    assert len(msgspec.convert(asked, ScoreRequest).text_2) == 2048
    with pytest.raises(msgspec.ValidationError, match="length <= 2048"):
        msgspec.convert(asked | {"text_2": ["b"] * 2049}, ScoreRequest)


def test_ollamas_forms(http: httpx2.Client) -> None:
    wanted = [unit(states(text)[-1]) for text in TEXTS[:2]]
    body: dict[str, Any] = {"model": "pie-tiny", "input": TEXTS[:2]}
    answer = http.post("/api/embed", json=body).json()
    assert near(answer["embeddings"], wanted, atol=1e-4)
    assert answer["prompt_eval_count"] == sum(len(states(text)) for text in TEXTS[:2])
    [one] = http.post("/api/embed", json=body | {"input": TEXTS[0]}).json()["embeddings"]
    assert near(one, wanted[0], atol=1e-4)
    older = http.post("/api/embeddings", json={"model": "pie-tiny", "prompt": TEXTS[0]}).json()
    assert near(unit(older["embedding"]), wanted[0], atol=1e-4)
    assert http.post("/api/embed", json=body | {"input": ""}).json()["embeddings"] == []
    long = body | {"input": "word " * 5000}
    assert len(http.post("/api/embed", json=long).json()["embeddings"]) == 1
    refused = http.post("/api/embed", json=long | {"truncate": False})
    assert refused.status_code == 400
    assert "tokens" in refused.json()["error"]


def test_texts_are_compared(http: httpx2.Client) -> None:
    query, *documents = [unit(states(text)[-1]) for text in TEXTS]
    wanted = [float(document @ query) for document in documents]
    body: dict[str, Any] = {"model": "pie-tiny", "text_1": TEXTS[0], "text_2": TEXTS[1:]}
    scores = http.post("/v1/score", json=body).json()["data"]
    assert [each["score"] for each in scores] == pytest.approx(wanted, abs=1e-4)
    uneven = http.post("/v1/score", json=body | {"text_1": TEXTS})
    assert (uneven.status_code, uneven.json()["error"]["param"]) == (400, "text_1")
    body = {"model": "pie-tiny", "query": TEXTS[0], "documents": [TEXTS[1], {"text": TEXTS[2]}]}
    ranked = http.post("/v1/rerank", json=body).json()["results"]
    assert [each["relevance_score"] for each in ranked] == pytest.approx(
        sorted(wanted, reverse=True), abs=1e-4
    )
    assert ranked[0]["document"]["text"] == TEXTS[1:][ranked[0]["index"]]
    bare = http.post("/rerank", json=body).json()["results"]  # so LiteLLM asks
    assert [each["index"] for each in bare] == [each["index"] for each in ranked]
    short = http.post("/v2/rerank", json=body | {"top_n": 1, "return_documents": False}).json()
    [best] = short["results"]
    assert best.pop("relevance_score") == pytest.approx(max(wanted), abs=1e-4)
    assert best == {"index": ranked[0]["index"]}


def test_a_text_stands_before_a_suffix(client: openai.OpenAI, http: httpx2.Client) -> None:
    asked: dict[str, Any] = {"prompt": "The capital", "suffix": " is Argon.", "max_tokens": 4}
    extra = {"return_token_ids": True}
    answer = client.completions.create(model="mean", temperature=0, extra_body=extra, **asked)
    marked = "<fim_prefix>The capital<fim_suffix> is Argon.<fim_middle>"
    tokens = http.post("/tokenize", json={"model": "mean", "prompt": marked}).json()["tokens"]
    [choice] = answer.choices
    assert choice.model_extra["prompt_token_ids"] == tokens
    parts = client.completions.create(model="mean", temperature=0, stream=True, **asked)
    assert "".join(part.choices[0].text for part in parts) == choice.text
    options = {"temperature": 0, "num_predict": 4}
    body = {"prompt": "The capital", "suffix": " is Argon.", "options": options, "stream": False}
    found = http.post("/api/generate", json={"model": "mean", **body}).json()
    assert found["response"] == choice.text
    for model, more in (("pie-tiny", {}), ("mean", {"prompt": tokens}), ("mean", {"echo": True})):
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model=model, **{**asked, **more})
        assert raised.value.param == ("echo" if "echo" in more else "suffix")
