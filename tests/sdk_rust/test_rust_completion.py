"""Text completion in Rust, with the SDK and from the raw API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.rust_components import Run
from transformers import AutoModelForCausalLM, AutoTokenizer

from pie_py.client.errors import ClientError

PROMPT = "The quick brown fox"
CRATES = ("text_completion", "text_completion_raw")


@pytest.mark.parametrize("prompt", ["a", PROMPT, PROMPT * 8])
def test_greedy_tokens_are_those_of_transformers(run: Run, checkpoint: Path, prompt: str) -> None:
    answer = json.loads(run("guests", "greedy", prompt, "40")[1])
    tokens = AutoTokenizer.from_pretrained(checkpoint)(prompt, add_special_tokens=False)[
        "input_ids"
    ]
    assert answer["prompt"][-len(tokens) :] == tokens
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    asked = torch.tensor([answer["prompt"]])
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        out = model.generate(asked, attention_mask=torch.ones_like(asked), **options)
    assert answer["tokens"] == out[0, asked.shape[1] :].tolist()


@pytest.mark.parametrize(("prompt", "count"), [("a", "40"), (PROMPT, "9999"), (PROMPT * 8, "40")])
def test_sdk_and_raw_api_give_the_same_text(run: Run, prompt: str, count: str) -> None:
    texts = [run(name, "--prompt", prompt, "--max-tokens", count) for name in CRATES]
    assert texts[0] == texts[1]
    assert texts[0][0]
    assert texts[0][1] == ""  # the text has been streamed, and is not said twice


@pytest.mark.parametrize("name", CRATES)
def test_seed_makes_sampling_repeatable(run: Run, name: str) -> None:
    options = ("-p", PROMPT, "-n", "30", "--temperature", "0.8", "--seed")
    texts = [run(name, *options, seed)[0] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert run(name, "-p", PROMPT, "-n", "5", "-t", "0.8")[0]


@pytest.mark.parametrize("name", CRATES)
@pytest.mark.parametrize(("wanted", "length"), [("0", 0), ("1", 1), ("4294967295", 200)])
def test_number_of_tokens(run: Run, name: str, wanted: str, length: int) -> None:
    """None, one, and as many as the model's context takes."""
    text = run(name, "--prompt", PROMPT, "--max-tokens", wanted)[0]
    assert bool(text) == bool(length)
    assert len(text.encode()) >= length


@pytest.mark.parametrize("name", CRATES)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "the option --prompt is missing"),
        (("--prompt",), "--prompt needs a value"),
        (("--prompt", "x", "--max-tokens", "many"), "--max-tokens many: invalid digit"),
        (("--prompt", "x", "--temperature", "-1"), "--temperature is 0 "),
        (("--prompt", "x", "--temperature", "NaN"), "--temperature is 0 "),
        (("--prompt", "x", "--loud"), "unknown argument --loud"),
    ],
)
def test_wrong_usage(run: Run, name: str, arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ClientError, match=f"usage: {reason}"):
        run(name, *arguments)
