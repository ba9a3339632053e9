"""Tokens chosen by the worker: repeatable, ahead of the host, with log-probabilities, and wrong
use.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from support import reference
from support.rust_components import rust_component
from support.servers import Server

pytestmark = pytest.mark.slow
languages = pytest.mark.parametrize("language", ["python", "rust"])


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 300), k=length)


def run_all(
    server: Server, guests: Path, mode: str, jobs: list[dict[str, Any]], language: str = "python"
) -> list[Any]:
    rust = language == "rust"
    with server.client() as client:
        program = client.upload(rust_component("sample_guests") if rust else guests / "sample.py")
        instances = [client.launch(program, [mode, json.dumps(job)]) for job in jobs]
        return [json.loads(instance.result()) for instance in instances]


@languages
def test_greedy_and_its_log_probabilities(
    server: Server, checkpoint: Path, guests: Path, language: str
) -> None:
    tokens = prompt(20, 1)
    sampler = {"temperature": 0, "logprobs": 4}
    [answer] = run_all(
        server, guests, "generate", [{"tokens": tokens, "count": 8, "sampler": sampler}], language
    )
    assert answer["tokens"] == reference.greedy(checkpoint, tokens, 8)
    for i, (token, logprob, top) in enumerate(
        zip(answer["tokens"], answer["logprobs"], answer["tops"], strict=True)
    ):
        exact = reference.probabilities(checkpoint, tokens + answer["tokens"][:i])
        assert math.isclose(logprob, math.log(exact[token]), abs_tol=1e-4)
        best, order = exact.sort(descending=True)
        assert [t for t, _ in top] == order[:4].tolist()
        for (_, ours), theirs in zip(top, best, strict=False):
            assert math.isclose(ours, float(theirs), rel_tol=1e-3)


@languages
@pytest.mark.parametrize("sampler", [{"temperature": 0.9, "seed": 3}, {"top_p": 0.5, "seed": 4}])
def test_log_probabilities_of_a_run_are_the_models_own(
    server: Server, checkpoint: Path, guests: Path, sampler: dict[str, Any], language: str
) -> None:
    jobs = [
        {"tokens": prompt(9 + 8 * i, i), "count": 40, "sampler": sampler, "scored": True}
        for i in range(3)
    ]
    answers = run_all(server, guests, "generate", jobs, language)
    for job, answer in zip(jobs, answers, strict=True):
        assert len(answer["tokens"]) == len(answer["logprobs"]) == 40
        for i in range(0, 40, 3):
            exact = reference.probabilities(checkpoint, job["tokens"] + answer["tokens"][:i])
            expected = math.log(exact[answer["tokens"][i]])
            assert math.isclose(answer["logprobs"][i], expected, abs_tol=1e-4)


@languages
def test_steps_queued_before_their_tokens_are_known(
    server: Server, checkpoint: Path, guests: Path, language: str
) -> None:
    jobs: list[dict[str, Any]] = [
        {
            "tokens": prompt(4 + 5 * i, i),
            "count": 20,
            "wasted": i,
            "shift": 5,
            "sampler": {"temperature": 0},
        }
        for i in range(4)
    ]
    answers = run_all(server, guests, "ahead", jobs, language)
    for job, answer in zip(jobs, answers, strict=True):
        expected = reference.greedy(checkpoint, job["tokens"], 20)
        assert answer["tokens"] == expected
        # Other tokens in the place of those that were dropped: nothing of these may be left.
        kept = 19 - job["wasted"]
        others = [(token + 5) % 300 for token in expected[kept:19]]
        again = [
            reference.greedy(checkpoint, job["tokens"] + expected[:kept] + others[: i + 1], 1)[0]
            for i in range(job["wasted"])
        ]
        assert answer["again"] == again
    # By chance, and counting its own tokens, too, it is as one step at a time.
    sampler = {"temperature": 1.4, "seed": 7, "presence_penalty": 1.0}
    job = {"tokens": prompt(9, 9), "count": 24, "wasted": 0, "shift": 0, "sampler": sampler}
    assert (
        run_all(server, guests, "ahead", [job], language)[0]["tokens"]
        == run_all(server, guests, "generate", [job])[0]["tokens"]
    )
