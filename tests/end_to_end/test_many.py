"""As many instances as the paper launches, all at once."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support import reference
from support.checkpoints import small_tokenizer
from support.rust_components import rust_component
from support.servers import Server

from pie_py.client import Client

PROMPTS = [f"The {word} fox" for word in ("quick", "brown", "lazy", "small", "capital", "test")]
TOKENS, COUNT = 4, 896


def expected_texts(checkpoint: Path) -> list[str]:
    """What transformers completes each prompt with, up to the stop token."""
    tokenizer = small_tokenizer()
    texts = []
    for prompt in PROMPTS:
        tokens = reference.greedy(checkpoint, tokenizer(prompt).input_ids, TOKENS)
        if tokenizer.eos_token_id in tokens:
            tokens = tokens[: tokens.index(tokenizer.eos_token_id)]
        texts.append(tokenizer.decode(tokens))
    return texts


@pytest.mark.nightly
def test_completions_launched_at_once(server: Server, checkpoint: Path) -> None:
    answers: dict[int, str] = {}

    async def launch_all() -> None:
        async with Client(server.endpoint) as client:
            program = await client.upload(rust_component("text_completion"), name="completion")

            async def complete(i: int) -> None:
                args = ["--prompt", PROMPTS[i % len(PROMPTS)], "--max-tokens", str(TOKENS)]
                instance = await client.launch(program, args)
                answers[i] = "".join([str(text) async for text in instance])
                answers[i] += await instance.result()

            async with anyio.create_task_group() as tasks:
                for i in range(COUNT):
                    tasks.start_soon(complete, i)
            assert await client.instances() == []
            stats = (await client.stats())["test"]
            assert stats["kv_pages_free"] == stats["kv_pages"]
            assert stats["embeds_free"] == stats["embeds"]

    anyio.run(launch_all)
    texts = expected_texts(checkpoint)
    wrong = {i: a for i, a in answers.items() if a != texts[i % len(PROMPTS)]}
    assert len(answers) == COUNT
    assert not wrong, (len(wrong), list(wrong.items())[:3], texts)
