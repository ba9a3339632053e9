"""Encoders have the numbers of transformers' own modules, each text as if it were alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from pie_inference.errors import LoadError
from pie_inference.handlers.base import ServedEncoder
from pie_inference.loading.assembly import load_served
from pie_inference.loading.check import check
from pie_py.config.model import ModelConfig

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 200,
    "max_position_embeddings": 120,
    "num_labels": 3,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
OWN = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
KINDS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {"type_vocab_size": 1},
    "XLMRoberta": {"type_vocab_size": 1},
    "DistilBert": OWN,
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2},
    "MPNet": {},
    "DebertaV2": {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c"]},
    "Albert": {"embedding_size": 16},
    "Qwen3": GROUPED,
    "Llama": {"num_key_value_heads": 2},
    "Gemma3Text": {**GROUPED, "sliding_window": 6, "use_bidirectional_attention": True},
}
ALONE = {"MPNet", "DebertaV2"}  # whose attention is not by transformers' interface


def made(name: str, head: bool, folder: Path) -> Any:
    """A random checkpoint, and transformers' module of it."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **KINDS[name])
    module = getattr(transformers, name + ("ForSequenceClassification" if head else "Model"))(
        config
    )
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.save_pretrained(folder)
    return module.eval()


def load(folder: Path, **options: Any) -> ServedEncoder:
    [found] = load_served([ModelConfig(source=str(folder), **options)])
    assert isinstance(found, ServedEncoder)
    return found


def numbers(encoder: ServedEncoder, texts: list[list[int]], seconds: list[int], raw: int) -> Any:
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    tokens = np.array([token for text in texts for token in text], np.int32)
    flags = np.full(len(texts), raw, np.int32)
    with torch.inference_mode():
        return encoder.encoder.run(tokens, starts, np.array(seconds, np.int32), flags).numpy()


def alone(module: Any, text: list[int], second: int) -> Any:
    """transformers' answer of one text."""
    types = {}
    if getattr(module.config, "type_vocab_size", 0) > 1:
        types["token_type_ids"] = torch.tensor([[int(0 <= second <= i) for i in range(len(text))]])
    with torch.inference_mode():
        answer = module(input_ids=torch.tensor([text]), **types)
    found = answer.logits[0] if "logits" in answer else answer.last_hidden_state[0].mean(0)
    return found.numpy()


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_texts_in_one_batch_have_the_numbers_of_each_alone(
    name: str, head: bool, tmp_path: Path
) -> None:
    if name in ("Qwen3", "Llama") and not head:
        pytest.skip("decoders of ours make vectors of their own")
    module = made(name, head, tmp_path)
    encoder = load(tmp_path)
    assert encoder.encoder.by_rows == (name not in ALONE and (name, head) != ("Albert", True))
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 200, length).tolist() for length in (5, 1, 17, 5, 30, 2)]
    seconds = [-1, -1, 9, 2, -1, 1]
    wanted = np.stack([alone(module, *pair) for pair in zip(texts, seconds, strict=True)])
    found = numbers(encoder, texts, seconds, raw=1)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * max(1, abs(wanted).max()))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ServedEncoder]:
    folder = tmp_path_factory.mktemp("bert")
    return made("Bert", False, folder), load(folder)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(5, 199), min_size=1, max_size=40), min_size=1, max_size=12))
def test_any_batch(bert: tuple[Any, ServedEncoder], texts: list[list[int]]) -> None:
    module, encoder = bert
    wanted = np.stack([alone(module, text, -1) for text in texts])
    found = numbers(encoder, texts, [-1] * len(texts), raw=0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
def test_vectors_are_pooled_as_the_files_say(mode: str, tmp_path: Path) -> None:
    module = made("Bert", False, tmp_path)
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"st.{kind}", "path": f"{at}_{kind}"} for at, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
    prompts = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    encoder = load(tmp_path)
    with torch.inference_mode():
        states = module(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0].numpy()
    pooled = {"mean_tokens": states.mean(0), "cls_token": states[0], "lasttoken": states[-1]}[mode]
    [raw], [unit] = (numbers(encoder, [[5, 6, 7]], [-1], raw=raw) for raw in (1, 0))
    np.testing.assert_allclose(raw, pooled, atol=1e-5)
    np.testing.assert_allclose(unit, pooled / np.linalg.norm(pooled), atol=1e-6)
    said = encoder.description
    assert (said.task, said.max_position) == ("embed", 64)
    assert said.prompts == {"query": "q: ", "": "q: "}


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, torch.nn.Softmax(1)),
        ({"problem_type": "multi_label_classification"}, torch.nn.Sigmoid()),
        ({"num_labels": 1}, torch.nn.Sigmoid()),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, torch.nn.Identity()),
    ],
)
def test_a_heads_activation(fields: dict[str, Any], activation: Any, tmp_path: Path) -> None:
    config = transformers.BertConfig(**{**SIZES, **fields})
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    encoder = load(tmp_path)
    raw, done = (numbers(encoder, [[5, 6], [7]], [-1, -1], raw=raw) for raw in (1, 0))
    np.testing.assert_allclose(done, activation(torch.from_numpy(raw)).numpy(), atol=1e-6)
    assert len(encoder.description.labels) == raw.shape[1]


def test_a_head_without_a_padding_token(tmp_path: Path) -> None:
    """transformers refuses a batch then; alone it takes the last token."""
    sizes = {**SIZES, **KINDS["Llama"], "pad_token_id": None}
    module = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**sizes)).eval()
    module.save_pretrained(tmp_path)
    texts = [[5, 6, 7], [8, 9, 10], [11]]
    wanted = np.stack([alone(module, text, -1) for text in texts])
    found = numbers(load(tmp_path), texts, [-1] * 3, raw=1)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_old_names_of_tensors_and_other_heads_are_read(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SIZES)
    module = transformers.BertForMaskedLM(config).eval()
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma"): value.clone()
        for name, value in module.state_dict().items()
    }
    module.save_pretrained(tmp_path, state_dict=state)
    encoder = load(tmp_path)
    assert encoder.description.task == "mask"  # so it says that it was not made for vectors
    [found] = numbers(encoder, [[5, 6, 7]], [-1], raw=1)
    np.testing.assert_allclose(found, alone(module.bert, [5, 6, 7], -1), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"model_type": "own", "auto_map": {}}, {}, "its own code, `auto_map`, is not run"),
        ({"hidden_size": 64, "num_attention_heads": 8}, {}, "disagree with config.json"),
        ({"num_hidden_layers": 3}, {}, "lacks tensors"),
        ({"num_hidden_layers": 10**9}, {}, "num_hidden_layers"),
        ({}, {"quantize": "int8"}, "quantize: not with an encoder"),
        ({}, {"modules": ["Dense"]}, "Dense is not supported"),
    ],
)
def test_what_cannot_be_served_is_named(
    change: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    made("Bert", False, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    if kinds := options.pop("modules", []):
        (tmp_path / "modules.json").write_text(json.dumps([{"type": f"st.{k}"} for k in kinds]))
    with pytest.raises(LoadError, match=said):
        load(tmp_path, **options)
    if not options:
        with pytest.raises(LoadError, match=said):
            check(str(tmp_path))


TEXTS = [
    "A man is eating food.",
    "Ein Mann isst etwas, ümlaut 日本語 🙂",
    "The monkey plays the drums " * 60,
    "",
    "a",
]


def test_vectors_of_minilm(minilm: Path) -> None:
    [served] = load_served([ModelConfig(source="minilm")])
    assert isinstance(served, ServedEncoder)
    assert served.encoder.by_rows
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm)
    # As sentence-transformers does: the mean of what is no padding, of length 1.
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    kept = inputs["attention_mask"]
    with torch.inference_mode():
        states = model.eval()(**inputs).last_hidden_state * kept[:, :, None]
        means = states.sum(1) / kept.sum(1, keepdim=True)
        wanted = torch.nn.functional.normalize(means, dim=1).numpy()
        texts = [
            ids[mask.bool()].numpy() for ids, mask in zip(inputs["input_ids"], kept, strict=True)
        ]
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        none, raw = np.full(len(texts), -1, np.int32), np.zeros(len(texts), np.int32)
        tokens = np.concatenate(texts).astype(np.int32)
        found = served.encoder.run(tokens, starts, none, raw).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
