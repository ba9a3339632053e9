"""Trains a LoRA by GRPO: a server makes the rollouts and scores them, PyTorch learns beside it.

    python -m examples.grpo.train MODEL.gguf RUN_FOLDER --steps 100

The same command goes on where a run was ended.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import click
import torch
from matplotlib.figure import Figure

from examples.grpo.learner import Learner
from examples.grpo.rollouts import Group, rollouts
from pie_py.client.sync import Call, Client

ADAPTER = "grpo"
SAVED_EVERY = 10  # steps
SMOOTHED = 5  # steps before and after that a point of the curve is a mean of


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--steps", default=100, help="In all.")
@click.option("--questions", default=4, help="Of a step.")
@click.option("--samples", default=8, help="Answers to each question.")
@click.option("--ahead", default=0, help="Steps whose answers are asked for before they are due.")
def main(model: Path, folder: Path, steps: int, questions: int, samples: int, ahead: int) -> None:
    """Trains on MODEL; FOLDER gets the adapter, the log and the curve of rewards.

    With --ahead the server writes while PyTorch learns: answers come from versions before the
    newest, which the ratios of the loss account for; `behind` in the log counts these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    learner, log, saved = Learner(model), folder / "log.jsonl", folder / "state.pt"
    rows, versions = [], [""]
    if saved.exists():
        state = torch.load(saved)
        learner.restore(state)
        rows = state["rows"]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Client.local(models=[{"source": str(model), "dtype": "float32"}]) as client:
        if rows:
            versions.append(client.upload_adapter(ADAPTER, learner.save_adapter(folder)))
        asked: list[Call] = []
        first = len(rows)
        for step in range(first, steps):
            begun = time.monotonic()
            while len(asked) <= min(ahead, steps - 1 - step):
                due = step + len(asked)
                adapter = ADAPTER if versions[-1] else None
                numbers = drawn(due, questions)
                asked.append(client.spawn(rollouts, numbers, samples, due * 1000, adapter))
            groups: list[Group] = asked.pop(0).result()
            written = time.monotonic()
            behind = versions[::-1].index(groups[0].version)
            distance = learner.learn(groups)
            learnt = time.monotonic()
            versions.append(client.upload_adapter(ADAPTER, learner.save_adapter(folder)))
            rewards = [each.reward for group in groups for each in group.samples]
            row = {
                "step": step,
                "reward": sum(rewards) / len(rewards),
                "behind": behind,
                "nats": distance,
                "tokens": sum(len(each.tokens) for group in groups for each in group.samples),
                "rollout_seconds": written - begun,
                "learn_seconds": learnt - written,
                "swap_seconds": time.monotonic() - learnt,
            }
            rows.append(row)
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(" ".join(f"{name} {value:.3g}" for name, value in row.items()))
            if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps:
                torch.save({**learner.state(), "rows": rows}, folder / "state.new")
                (folder / "state.new").replace(saved)
    draw([row["reward"] for row in rows], folder / "curve.png")


def drawn(step: int, count: int) -> list[tuple[int, int]]:
    """The questions of a step: two different numbers each."""
    random = Random(step)
    pairs = [random.sample(range(10, 100), 2) for _ in range(count)]
    return [(one, other) for one, other in pairs]


def draw(rewards: list[float], file: Path) -> None:
    """Draws the reward of each step, and its running mean."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    near = [rewards[max(0, step - SMOOTHED) : step + SMOOTHED + 1] for step in range(len(rewards))]
    axes.plot(rewards, color="lightgray")
    axes.plot([sum(some) / len(some) for some in near])
    axes.set(xlabel="step", ylabel="reward", ylim=(0, 1))
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
