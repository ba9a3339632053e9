"""A real model, SmolLM2-135M-Instruct, as a server serves it and as `transformers` computes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.servers import Server
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from pie_inference.checkpoints.gguf_file import gguf_folder
from pie_py.client import sync

TOKENS = 10
WRITES = f"""
import json
from inferlet import Context, Model, Sampler

async def main(prompt: str) -> str:
    context = Context(Model.load()).fill(prompt)
    generation = context.generate(Sampler.greedy(), max_tokens={TOKENS}, stop=[])
    return json.dumps(await generation.collect_tokens())
"""
PROMPTS = (
    "Once upon a time, in a small village by the sea,",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob |",
    "SELECT name, COUNT(*) FROM users\nWHERE age >  18\nGROUP BY",
    "The year is  2024 and the   7 dwarfs\n\n12 of them",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(smollm2: Path) -> Iterator[sync.Client]:
    """A server with the model in float32."""
    models = [{"source": str(smollm2), "name": "smollm2", "dtype": "float32", "kv_pages": 512}]
    with Server(models=models) as server, server.client() as client:
        yield client


def test_greedy_texts_are_those_of_transformers(client: sync.Client, smollm2: Path) -> None:
    program = client.upload(WRITES.encode(), name="writes")
    at_once = [client.launch(program, [f"--prompt={prompt}"]) for prompt in PROMPTS]
    found = [json.loads(instance.result()) for instance in at_once]
    tokenizer = Tokenizer.from_file(str(gguf_folder(smollm2) / "tokenizer.json"))
    network = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    for prompt, written in zip(PROMPTS, found, strict=True):
        assert len(written) == TOKENS
        tokens = tokenizer.encode(prompt).ids
        # Each is the likeliest behind those before it: what `generate` writes, in one forward.
        with torch.inference_mode():
            [logits] = network(torch.tensor([tokens + written[:-1]])).logits
        assert written == logits[len(tokens) - 1 :].argmax(-1).tolist(), prompt
