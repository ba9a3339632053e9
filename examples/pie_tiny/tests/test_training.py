"""Training: its curriculum, and that a run which is stopped, however rudely, ends as one that was
not.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click import ClickException
from transformers import AutoModelForCausalLM

from examples.pie_tiny import data, train
from examples.pie_tiny.model import SIZES, build, export
from examples.pie_tiny.tokenizer import save_tokenizer, train_tokenizer
from examples.pie_tiny.train import Plan, Stop, Trainer

ROOT = Path(__file__).parents[3]
POOL = 128
NAME = "pie-tiny-draft"
TOKENS = 2600
# The curriculum of `Plan` with short samples, a few in a batch.
STAGES = tuple(replace(stage, longest=160, batch=640) for stage in Plan(1).stages)
# `examples.pie_tiny.train` with it, and with few samples drawn at once, in a process of its own.
TRAIN = f"""
import functools, sys
from pathlib import Path
from examples.pie_tiny import data, train
from examples.pie_tiny.data import Stage
data.POOL = {POOL}
train.Plan = functools.partial(train.Plan, stages={STAGES!r})
train.train({NAME!r}, Path(sys.argv[1]), 130_000_000, compiled=False, save_seconds=0)
"""


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer("test", samples=500), folder)
    return folder


@pytest.fixture(autouse=True)
def few_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that begins draws a pool; most that begin here take one step."""
    monkeypatch.setattr(data, "POOL", POOL)


def new_run(folder: Path, tokenizer_folder: Path) -> Path:
    folder.mkdir()
    for file in tokenizer_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def weights(run: Path) -> dict[str, torch.Tensor]:
    state = torch.load(run / "checkpoint.pt", weights_only=True)["model"]
    assert isinstance(state, dict)
    return state


class Never(Stop):
    """A stop that is never asked for."""

    def __init__(self) -> None:
        self.asked = False


class AfterOne(Stop):
    """A stop asked for after one step."""

    def __init__(self) -> None:
        self.looked = 0

    @property
    def asked(self) -> bool:  # type: ignore[override]
        self.looked += 1
        return self.looked > 1


def trainer(run: Path, name: str = NAME) -> Trainer:
    return Trainer(name, run, Plan(TOKENS, stages=STAGES), torch.device("cpu"), compiled=False)


def test_rates_rise_and_fall() -> None:
    plan = Plan(1_000_000)
    rates = [plan.rate(tokens) for tokens in range(0, 1_000_001, 1000)]
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.02)
    assert [plan.stage(tokens) for tokens in (0, 1_000_000)] == [0, len(plan.stages) - 1]


def test_a_run_that_is_stopped_ends_as_one_that_is_not(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    whole, parts = (new_run(tmp_path / name, tokenizer_folder) for name in ("whole", "parts"))
    assert trainer(whole).run(Never())
    stopped = 0
    while not trainer(parts).run(AfterOne()):
        stopped += 1
    assert stopped > 2
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(parts)[name]), name


@pytest.mark.nightly
def test_a_run_that_is_killed_goes_on(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path / "run", tokenizer_folder)
    command = [sys.executable, "-c", TRAIN, str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    while steps(run) < 1:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = torch.load(run / "checkpoint.pt", weights_only=True)["place"]
    monkeypatch.setattr(train, "Plan", functools.partial(Plan, stages=STAGES))
    monkeypatch.setattr(train, "Stop", Never)
    train.train(NAME, run, before[1] + 1000, compiled=False, save_seconds=0)
    log = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert log.count(1) == 1  # it did not begin again
    assert steps(run) > before[0]
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert type(model).__name__ == "LlamaForCausalLM"


@pytest.mark.nightly
def test_a_stop_of_the_one_command_stops_the_training(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    for name in SIZES:
        new_run(tmp_path / name, tokenizer_folder)
    command = [sys.executable, "-m", "examples.pie_tiny", str(tmp_path), "--no-compile"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    log = tmp_path / "pie-tiny" / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert b"run the same command again" in errors
    assert steps(tmp_path / "pie-tiny") >= 1
    trainer(tmp_path / "pie-tiny", "pie-tiny")  # the lock is free


def test_two_never_train_in_one_folder(tmp_path: Path, tokenizer_folder: Path) -> None:
    run = new_run(tmp_path / "run", tokenizer_folder)
    first = trainer(run)
    with pytest.raises(ClickException, match="another process"):
        trainer(run)
    del first
    trainer(run)


def steps(run: Path) -> int:
    file = run / "checkpoint.pt"
    return int(torch.load(file, weights_only=True)["place"][0]) if file.exists() else 0


@pytest.mark.parametrize("name", list(SIZES))
def test_the_exported_model_is_the_trained_one(name: str, tmp_path: Path) -> None:
    model = build(name, vocabulary=300, seed=3)
    export(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for name_, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name_], tensor.to(torch.bfloat16)), name_
    assert loaded.config.tie_word_embeddings
    assert loaded.generation_config.eos_token_id == 1
