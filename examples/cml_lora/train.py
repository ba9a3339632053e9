"""Trains the adapter, from nothing or from where the last run ended.

    python -m examples.cml_lora.train MODEL.gguf TOKENIZER.json RUN_FOLDER --tokens 600000

SIGTERM and SIGINT end it after the step under way; the same command goes on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import click
import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from tokenizers import Tokenizer

from examples.cml_lora.general import TOPICS, answers, windows
from examples.cml_lora.lora import answer_loss, divergence, load_model, with_new_adapter
from examples.cml_lora.tasks import draw_sample, encode_sample
from examples.pie_tiny.corpus.sample import Split

SEED = "cml-lora-train"
POOL = 32  # samples that are drawn together and sorted by length, so that little is padding
BATCH = 4
LONGEST = 400  # tokens of a sample
WARM_UP = 20  # steps
SAVED_EVERY = 120  # seconds

Row = tuple[list[int], list[bool]]


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", default=600_000, help="To read, in all; the rate falls up to there.")
@click.option("--easy", default=0.25, help="This share of them is of easy requests, at first.")
@click.option("--asynchronous", default=0.6, help="Share of requests answered asynchronously.")
@click.option("--late", default=0.2, help="Share of these to which a task is added meanwhile.")
@click.option("--unanswered", default=0.15, help="Share in which some calls want no answer.")
@click.option(
    "--start", type=click.Path(exists=True, path_type=Path), help="Begins with this adapter."
)
@click.option("--general", default=0.3, help="Share of batches that keep the model as it was.")
@click.option(
    "--text", multiple=True, type=click.Path(exists=True, path_type=Path), help="English."
)
@click.option("--rank", default=8)
@click.option("--rate", default=1e-3, help="Of learning, at its highest.")
def main(
    model: Path,
    tokenizer: Path,
    folder: Path,
    tokens: int,
    easy: float,
    asynchronous: float,
    late: float,
    unanswered: float,
    start: Path | None,
    general: float,
    text: tuple[Path, ...],
    rank: int,
    rate: float,
) -> None:
    """Trains on MODEL; FOLDER gets a checkpoint and `adapter`, as PEFT saves it.

    In general batches the loss is how far the adapter moves the model on its own answers to
    questions, and on texts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = Tokenizer.from_file(str(tokenizer))
    base = load_model(model)
    kept = answers(base, encoder, TOPICS, folder / "general.json") if general else []
    read = [(ids, [True] * len(ids)) for file in text for ids in windows(encoder, file)]
    torch.manual_seed(0)
    adapted = with_new_adapter(base, rank)
    parameters = [p for p in adapted.parameters() if p.requires_grad]
    if start is not None:
        set_peft_model_state_dict(adapted, load_file(start / "adapter_model.safetensors"))
    masters = [p.detach().float() for p in parameters]  # what is learnt; bfloat16 rounds it
    optimizer = torch.optim.AdamW(masters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    state = {"step": 0, "read": 0}
    if (folder / "state.pt").exists():
        saved = torch.load(folder / "state.pt")
        for values in (masters, parameters):
            for value, kept_value in zip(values, saved["parameters"], strict=True):
                value.data.copy_(kept_value)
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["state"]

    def save() -> None:
        whole = {"parameters": masters, "optimizer": optimizer.state_dict(), "state": state}
        torch.save(whole, folder / "state.new")
        (folder / "state.new").replace(folder / "state.pt")
        adapted.save_pretrained(folder / "adapter")

    since, saved_at = time.monotonic(), time.monotonic()
    before = state["read"]
    with _ends_by_signal() as ended:
        while state["read"] < tokens and not ended:
            random = Random(f"{SEED}:{state['step']}")
            simple = state["read"] < easy * tokens
            for rows in batches(encoder, random, simple, asynchronous, late, unanswered):
                loss_of = answer_loss
                if random.random() < general:
                    source = random.choice([one for one in (kept, read) if one])
                    rows, loss_of = random.sample(source, BATCH), divergence
                done = state["read"] / tokens
                for group in optimizer.param_groups:
                    group["lr"] = rate * min((state["step"] + 1) / WARM_UP, max(1.0 - done, 0.05))
                loss, count = loss_of(adapted, *zip(*rows, strict=True))
                loss.backward()  # type: ignore[no-untyped-call]
                for parameter, master in zip(parameters, masters, strict=True):
                    assert parameter.grad is not None
                    master.grad, parameter.grad = parameter.grad.float(), None
                torch.nn.utils.clip_grad_norm_(masters, 1.0)
                optimizer.step()
                for parameter, master in zip(parameters, masters, strict=True):
                    parameter.data.copy_(master)
                state["step"] += 1
                state["read"] += sum(len(ids) for ids, _ in rows)
                speed = (state["read"] - before) / (time.monotonic() - since)
                print(
                    f"{state['step']} {state['read']} {loss.item():.4f} {count} {speed:.0f}/s",
                    flush=True,
                )
                if ended:
                    break
            if time.monotonic() - saved_at > SAVED_EVERY:
                save()
                saved_at = time.monotonic()
    save()


@contextmanager
def _ends_by_signal() -> Iterator[list[int]]:
    """Signals that have come meanwhile and ask for an end, instead of ending the process."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    came: list[int] = []
    before = [signal.signal(number, lambda caught, _: came.append(caught)) for number in numbers]
    try:
        yield came
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def batches(
    encoder: Tokenizer,
    random: Random,
    easy: bool,
    asynchronous: float,
    late: float,
    unanswered: float,
) -> Iterator[list[Row]]:
    """The next few batches of requests, each of rows of about one length."""
    pool: list[Row] = []
    while len(pool) < POOL:
        way = random.random() < asynchronous
        sample = draw_sample(
            random,
            Split(),
            asynchronous=way,
            easy=easy,
            late_share=late,
            unanswered_share=unanswered,
        )
        row = encode_sample(encoder, sample)
        if len(row[0]) <= LONGEST:
            pool.append(row)
    pool.sort(key=lambda row: len(row[0]))
    groups = [pool[start : start + BATCH] for start in range(0, POOL, BATCH)]
    random.shuffle(groups)
    yield from groups


if __name__ == "__main__":
    main()
