"""Text completion in Rust, with the SDK and from the raw API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Run

from pie_py.client.errors import ClientError

PROMPT = "The quick brown fox"
CRATES = ("text_completion", "text_completion_raw")


def reference(checkpoint: Path, prompt: str, count: int) -> list[int]:
    """Greedy tokens by `transformers`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokens = tokenizer(prompt, return_tensors="pt")
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    model.generation_config.eos_token_id = None
    out: list[int] = model.generate(**tokens, **options)[0, tokens["input_ids"].shape[1] :].tolist()
    return out


@pytest.mark.parametrize("prompt", ["a", PROMPT, PROMPT * 8])
def test_greedy_tokens_are_those_of_transformers(run: Run, checkpoint: Path, prompt: str) -> None:
    answer = run("guests", "greedy", prompt, "40")[1]
    assert json.loads(answer) == reference(checkpoint, prompt, 40)


@pytest.mark.parametrize("prompt", ["a", PROMPT, PROMPT * 8])
def test_sdk_and_raw_api_give_the_same_text(run: Run, prompt: str) -> None:
    texts = [run(name, "--prompt", prompt, "--max-tokens", "40") for name in CRATES]
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
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "the option --prompt is missing"),
        (("--prompt",), "--prompt needs a value"),
        (("--prompt", "x", "--max-tokens", "many"), "--max-tokens many: invalid digit"),
        (("--prompt", "x", "--loud"), "unknown argument --loud"),
    ],
)
def test_wrong_usage(run: Run, name: str, arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ClientError, match=f"usage: {reason}"):
        run(name, *arguments)
