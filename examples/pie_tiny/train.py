"""Trains pie-tiny or its drafter on the corpus.

A run can be stopped at any moment and goes on from its last checkpoint when started again: the
folder holds the checkpoint, the tokenizer, the log of losses and, at the end, the exported model.
Two processes never train in one folder.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click
import torch
from tokenizers import Tokenizer
from torch.nn import Module
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from examples.pie_tiny.data import Batch, Stage, batches
from examples.pie_tiny.model import build, export
from examples.pie_tiny.tokenizer import IGNORED, save_tokenizer, train_tokenizer

SEED = "pie-tiny"
LOG_STEPS = 20


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    Attributes:
        tokens: in all, padding included.
        matrix_rate: peak learning rate of the hidden matrices (Muon).
        other_rate: peak learning rate of embeddings and norms (AdamW).
        warmup: share of the tokens over which the rates rise.
        stages: the curriculum. Copying comes first, in many small steps: nothing else is learnt
            well without it. Then the samples become longer, and the steps larger.
    """

    tokens: int
    matrix_rate: float = 0.005
    other_rate: float = 0.002
    warmup: float = 0.004
    stages: tuple[Stage, ...] = (
        Stage(until=0.02, longest=160, batch=2048, copies=0.5),
        Stage(until=0.12, longest=256, batch=4096, copies=0.35),
        Stage(until=0.4, longest=448, batch=4096, copies=0.08),
        Stage(until=1.0, longest=1024, batch=8192, copies=0.10),
    )

    def rate(self, tokens: int) -> float:
        """The factor of the peak rates after so many tokens: a warm-up, then a cosine down to 2
        %.
        """
        done = tokens / self.tokens
        if done < self.warmup:
            return done / self.warmup + 1e-3
        angle = math.pi * min(1.0, (done - self.warmup) / (1 - self.warmup))
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(angle))

    def stage(self, tokens: int) -> int:
        """The number of the stage after so many tokens."""
        done = min(1.0, tokens / self.tokens)
        return next(number for number, stage in enumerate(self.stages) if done <= stage.until)


class Trainer:
    """One run: the model, its optimizers, and where in the corpus it is."""

    def __init__(
        self, name: str, folder: Path, plan: Plan, device: torch.device, compiled: bool
    ) -> None:
        self.folder, self.plan, self.device = folder, plan, device
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder)
        if not (folder / "tokenizer.json").exists():
            save_tokenizer(train_tokenizer(SEED), folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model: LlamaForCausalLM = build(name, self.tokenizer.get_vocab_size(), seed=1)
        Module.to(self.model, device)
        self.body: Any = (
            torch.compile(self.model.model, dynamic=True) if compiled else self.model.model
        )
        self.optimizers = _optimizers(self.model, plan)
        self.step, self.tokens, self.stage, self.pool, self.position = 0, 0, 0, 0, 0
        self.seconds = 0.0
        self._load()

    def run(self, stop: Stop, save_seconds: float = 120) -> bool:
        """Trains until the plan is done or a stop is asked for; says whether it is done.

        Args:
            stop: asked after every step.
            save_seconds: between two checkpoints; one is written at the end in any case.
        """
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            saved, losses = time.monotonic(), []
            stream = self._stream()
            while self.tokens < self.plan.tokens and not stop.asked:
                if self.stage != (stage := self.plan.stage(self.tokens)):
                    self.stage, self.pool, self.position = stage, self.pool + 1, 0
                    stream = self._stream()
                started = time.monotonic()
                losses.append(self._train(next(stream)))
                self.seconds += time.monotonic() - started
                if self.step == 1 or self.step % LOG_STEPS == 0:  # the first shows that it runs
                    entry = {
                        "step": self.step,
                        "tokens": self.tokens,
                        "loss": round(sum(losses) / len(losses), 4),
                        "rate": round(self.plan.rate(self.tokens), 4),
                        "seconds": round(self.seconds, 1),
                    }
                    losses.clear()
                    for file in (log, sys.stderr):
                        print(json.dumps(entry), file=file, flush=True)
                if time.monotonic() - saved > save_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        return self.tokens >= self.plan.tokens

    def save(self) -> None:
        """Writes the checkpoint; one that is cut short leaves the one before it."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "place": [self.step, self.tokens, self.stage, self.pool, self.position, self.seconds],
        }
        part = self.folder / "checkpoint.part"
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.folder / "checkpoint.pt")

    def _stream(self) -> Iterator[Batch]:
        stage = self.plan.stages[self.stage]
        return batches(self.tokenizer, SEED, stage, self.pool, self.position)

    def _load(self) -> None:
        file = self.folder / "checkpoint.pt"
        if not file.exists():
            return
        state = torch.load(file, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.tokens, self.stage, self.pool, self.position, self.seconds = state["place"]

    def _train(self, batch: Batch) -> float:
        peaks = (self.plan.matrix_rate, self.plan.other_rate)
        for optimizer, peak in zip(self.optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * self.plan.rate(self.tokens)
        ids = batch.ids.to(self.device)
        targets = batch.targets.to(self.device).flatten()
        learned = (targets != IGNORED).nonzero()[:, 0]
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.body(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
            logits = self.model.lm_head(hidden[learned])
        loss = cross_entropy(logits.float(), targets[learned])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.tokens += batch.ids.numel()
        self.pool, self.position = batch.pool, batch.position
        return float(loss.detach())


class Stop:
    """True if SIGINT or SIGTERM has asked the run to end after the step under way."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def _locked(folder: Path) -> TextIO:
    """The lock of a run, held for as long as the file is open, or until the process dies.

    Raises:
        click.ClickException: another process trains here, perhaps one whose parent was killed.
    """
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise click.ClickException(f"another process trains in {folder}") from None
    return file


def _optimizers(model: LlamaForCausalLM, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings and norms, which Muon is not meant for."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=plan.matrix_rate, weight_decay=0.01)
    adam = torch.optim.AdamW(
        others, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    return [muon, adam]


def train(name: str, folder: Path, tokens: int, *, compiled: bool, save_seconds: float) -> None:
    """Trains a model, or goes on where a run was stopped, and exports it to FOLDER/model.

    Raises:
        SystemExit: a signal has stopped it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(name, folder, Plan(tokens), device, compiled)
    if not trainer.run(Stop(), save_seconds):
        raise SystemExit("stopped; run the same command again to go on")
    export(trainer.model, folder / "model")
    save_tokenizer(trainer.tokenizer, folder / "model")
    click.echo(
        f"{trainer.tokens:,} tokens in {trainer.seconds / 60:.0f} minutes: {folder / 'model'}"
    )
