"""Models of different families at the same time, each with its own pools."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support import reference
from support.families import make_family
from support.servers import Server


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 300), k=length)


@pytest.mark.slow
def test_two_families_at_once(short_folder: Path, guests: Path) -> None:
    folders = {
        "gemma": make_family(short_folder / "gemma3", "gemma3"),
        "experts": make_family(short_folder / "moe", "qwen3-moe"),
    }
    pages = {"gemma": (8, 300), "experts": (16, 200)}
    models = [
        {"source": str(folder), "name": name, "page_size": size, "kv_pages": count}
        for (name, folder), (size, count) in zip(folders.items(), pages.values(), strict=True)
    ]
    prompts = [prompt(1 + 9 * i, seed=i) for i in range(5)]
    with Server(short_folder, models=models) as server, server.client() as client:
        told = {model["name"]: model for model in client.models()}
        assert list(told) == list(folders)  # the first is the default one
        assert {n: (m["page_size"], m["kv_pages"]) for n, m in told.items()} == pages
        assert told["gemma"]["architecture"] == "Gemma3ForCausalLM"
        assert told["experts"]["architecture"] == "Qwen3MoeForCausalLM"
        both = client.upload(guests / "two_models.py")
        default = client.upload(guests / "greedy.py")
        instances = [client.launch(both, [json.dumps(p), "20"]) for p in prompts]
        plain = [client.launch(default, [json.dumps(p), "20"]) for p in prompts]
        for tokens, instance, other in zip(prompts, instances, plain, strict=True):
            answer = json.loads(instance.result())
            wanted = {n: reference.greedy(folder, tokens, 20) for n, folder in folders.items()}
            assert answer == wanted
            assert json.loads(other.result()) == wanted["gemma"]
