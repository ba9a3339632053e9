"""The trainer's example: it learns from a server's answers and their log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from click.testing import CliRunner
from support.checkpoints import make_llama

from examples.grpo.learner import Learner
from examples.grpo.rollouts import Group, Sample, reward
from examples.grpo.train import main

GOOD, BAD = [5, 6, 7], [5, 8]


def test_only_a_whole_answer_is_rewarded() -> None:
    assert reward(" 42.", (42, 17)) == 1.0
    for answer in (" 17", " 421", "42", " x"):
        assert reward(answer, (42, 17)) == 0.0, answer


def test_what_was_better_than_the_groups_mean_becomes_likelier(tmp_path: Path) -> None:
    learner = Learner(make_llama(tmp_path / "model"), rank=4)

    def logprobs(tokens: list[int]) -> list[float]:
        with torch.no_grad():
            every = learner.model(torch.tensor([[3, 4, *tokens]])).logits[0].log_softmax(-1)
        return [every[place + 1, token].item() for place, token in enumerate(tokens)]

    before = logprobs(GOOD), logprobs(BAD)
    samples = [Sample(GOOD, before[0], 1.0), Sample(BAD, before[1], 0.0)]
    assert learner.learn([Group([3, 4], samples, "")]) < 1e-5, "it chose them itself"
    learner.learn([Group([3, 4], samples, "")])
    assert sum(logprobs(GOOD)) > sum(before[0])
    assert logprobs(BAD)[1] < before[1][1]
    moved = logprobs(GOOD)
    learner.learn([Group([3, 4], [Sample(GOOD, moved, 1.0), Sample(GOOD, moved, 1.0)], "")])
    assert abs(sum(logprobs(GOOD)) - sum(moved)) < 0.5, "as good as all others: only momentum"


def test_a_run_goes_on_with_the_adapter_that_it_has(tmp_path: Path) -> None:
    model, folder = make_llama(tmp_path / "model", max_position=512), tmp_path / "run"
    learner = Learner(model)
    for name, values in learner.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(values, std=0.1)
    folder.mkdir()
    row = {"step": 0, "reward": 0.0}
    torch.save({**learner.state(), "rows": [row]}, folder / "state.pt")
    given = [model, folder, "--steps", 4, "--questions", 2, "--samples", 2, "--ahead", 1]
    done = CliRunner().invoke(main, list(map(str, given)))
    assert done.exception is None, done.output
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [each["step"] for each in rows] == [0, 1, 2, 3]
    assert all(each["nats"] < 1e-4 for each in rows[1:]), rows  # the server has what was trained
    assert (folder / "curve.png").stat().st_size > 1000
    assert (folder / "adapter_model.safetensors").exists()
