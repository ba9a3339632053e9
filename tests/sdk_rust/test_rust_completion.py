"""Text completion in Rust; guests that behave and guests that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.rust_components import Run, rust_component
from transformers import AutoModelForCausalLM, AutoTokenizer

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client

PROMPT = "The quick brown fox"


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


def test_seed_makes_sampling_repeatable(run: Run) -> None:
    options = ("-p", PROMPT, "-n", "30", "--temperature", "0.8", "--seed")
    texts = [run("text_completion", *options, seed)[0] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert run("text_completion", "-p", PROMPT, "-n", "5", "-t", "0.8")[0]


@pytest.mark.parametrize(("wanted", "length"), [("0", 0), ("1", 1), ("4294967295", 200)])
def test_number_of_tokens(run: Run, wanted: str, length: int) -> None:
    """None, one, and as many as the model's context takes."""
    text = run("text_completion", "--prompt", PROMPT, "--max-tokens", wanted)[0]
    assert bool(text) == bool(length)
    assert len(text.encode()) >= length


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
def test_wrong_usage(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ClientError, match=f"usage: {reason}"):
        run("text_completion", *arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fail"], "^failed on purpose$"),
        (["usage"], "^usage: give another argument$"),
        (["deadlock"], "a deadlock$"),
        (["trap"], "^trap: .*aborted"),
        (["recurse"], "^trap: .*stack"),
        (["recurse-with-frames"], "^trap: the call stack is exhausted.*deeper"),
        (["no-such-mode"], "^usage: "),
    ],
)
def test_errors_reach_the_client(run: Run, arguments: list[str], reason: str) -> None:
    with pytest.raises(ClientError, match=reason):
        run("guests", *arguments)


def test_a_panic_is_in_the_log(client: Client) -> None:
    instance = client.launch(client.upload(rust_component("guests")), ["panic"])
    with pytest.raises(ClientError, match="aborted"):
        instance.result()
    lines = instance.logs()["lines"]
    assert any("on purpose" in str(line) and "bad.rs" in str(line) for line in lines), lines
