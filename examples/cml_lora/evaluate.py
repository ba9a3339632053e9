"""A model's CML: on functions that training never named, and held to nothing.

    python -m examples.cml_lora.evaluate MODEL.gguf TOKENIZER.json [--adapter FOLDER]

Shares come with their 95 % intervals (Wilson 1927).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import click
import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from examples.cml_lora.bfcl import SETS, questions
from examples.cml_lora.general import HELD_OUT_TOPICS, answers, windows
from examples.cml_lora.lora import answer_loss, load_model
from examples.cml_lora.tasks import draw_sample, encode_text, in_chat_template
from examples.pie_tiny.call_episodes import Asynchronous, Calls, Synchronous
from examples.pie_tiny.corpus.sample import END, Split
from examples.pie_tiny.decoding import decode
from examples.pie_tiny.episodes import Vocabulary

SEED = "cml-lora-test"
# One at a time; the same requests asynchronously; and such as can only be answered so: every second
# one gets a task meanwhile, and in the others some calls want no answer.
WAYS = ("sync", "async", "interrupted")
Z = 1.96  # standard deviations of 95 %


class TextMarkers(Vocabulary):
    """pie-tiny's texts in another model's tokens; its episodes look for blocks at each `]`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes the tokenizer of a model whose chat template is ChatML."""
        self._tokenizer = tokenizer
        ends = {n: "]" for n in range(tokenizer.get_vocab_size()) if self.decode([n]).endswith("]")}
        ids = tokenizer.get_vocab()
        self.special = {**ends, ids["<|im_end|>"]: END, ids["<|im_start|>"]: "<|user|>"}

    def encode(self, text: str) -> list[int]:
        """Ids of pie-tiny's text."""
        return encode_text(self._tokenizer, in_chat_template(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; a turn that the model begins itself is one to pie-tiny's parser."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text.replace("<|im_start|>", "<|user|>")


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.option("--adapter", type=click.Path(exists=True, path_type=Path), help="A folder of PEFT's.")
@click.option("--requests", default=200, help="So many in each way of calling.")
@click.option("--text", type=click.Path(exists=True, path_type=Path), help="English, held out.")
@click.option(
    "--bfcl", type=click.Path(exists=True, path_type=Path), help="A folder that holds bfcl-eval."
)
@click.option("--answers", "kept", type=click.Path(path_type=Path), help="Keeps general answers.")
@click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, default=WAYS)
@click.option("--wrong", type=click.Path(path_type=Path), help="A file that gets what went wrong.")
def main(
    model: Path,
    tokenizer: Path,
    adapter: Path | None,
    requests: int,
    ways: tuple[str, ...],
    text: Path | None,
    kept: Path | None,
    bfcl: Path | None,
    wrong: Path | None,
) -> None:
    """Prints a line of JSON for each figure."""
    encoder = Tokenizer.from_file(str(tokenizer))
    base = load_model(model)
    general = answers(base, encoder, HELD_OUT_TOPICS, kept) if kept else []
    rows = [(row, [True] * len(row)) for row in windows(encoder, text)] if text else []
    losses = [_loss(base, part) for part in (rows, general)]
    if adapter is not None:
        base = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    for name, part, before in zip(("text", "general"), (rows, general), losses, strict=True):
        if part:
            _tell(f"log-likelihood of {name}", before=-before, after=-_loss(base, part))
    vocabulary = TextMarkers(encoder)
    for way in ways:
        episodes = play(base, vocabulary, requests, way)
        _share(f"{way}: valid CML", [episode.violation is None for episode in episodes])
        _share(f"{way}: all calls right", [episode.all_right for episode in episodes])
        right = [True] * sum(episode.ledger.right for episode in episodes)
        wanted = sum(len(episode.ledger.expected) for episode in episodes)
        _share(f"{way}: calls right", right + [False] * (wanted - len(right)))
        _share(f"{way}: last words right", [episode.closed_right for episode in episodes])
        first = Counter(cause for episode in episodes for cause in _causes(episode)[:1])
        print(json.dumps({"figure": f"{way}: first mistakes", **first}), flush=True)
        if wrong is not None:
            _keep_wrong(wrong, way, episodes)
    if bfcl is None:
        return
    for name in SETS:
        asked = questions(bfcl, name, vocabulary)
        decode(base, asked, rows=32)
        _share(f"{name}: valid CML", [one.violation is None for one in asked])
        _share(f"{name}: all calls right", [one.exact for one in asked])


def play(model: PreTrainedModel, vocabulary: Vocabulary, requests: int, way: str) -> list[Calls]:
    """Has a model answer held-out requests in one of the `WAYS`, by its likeliest tokens."""
    episodes: list[Calls] = []
    for number in range(requests):
        random = Random(f"{SEED}:{number}")
        late = float(way == "interrupted" and number % 2)
        unanswered = float(way == "interrupted" and not number % 2)
        sample = draw_sample(
            random,
            Split(held_out=True),
            asynchronous=way != "sync",
            late_share=late,
            unanswered_share=unanswered,
        )
        episodes.append(
            Synchronous(vocabulary, sample)
            if way == "sync"
            else Asynchronous(vocabulary, sample, random)
        )
    decode(model, episodes, rows=32)
    return episodes


def _keep_wrong(file: Path, way: str, episodes: Sequence[Calls]) -> None:
    with file.open("a") as kept:
        for episode in episodes:
            if causes := _causes(episode):
                line = {"way": way, "causes": causes, "text": episode.text}
                print(json.dumps(line, ensure_ascii=False), file=kept)


def _causes(episode: Calls) -> list[str]:
    """The faults of an episode, in order; a violation of CML ends it."""
    violation = [] if episode.violation is None else [episode.violation]
    return [str(cause) for cause in [*episode.ledger.problems, *violation]]


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, square = right / of, Z * Z / of
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


@torch.inference_mode()
def _loss(model: PreTrainedModel, rows: Sequence[tuple[list[int], list[bool]]]) -> float:
    """Mean negative log-likelihood of the learned tokens, in nats."""
    parts = [answer_loss(model, [ids], [learned]) for ids, learned in rows]
    return sum(float(loss) * count for loss, count in parts) / max(1, sum(c for _, c in parts))


def _share(name: str, outcomes: Sequence[bool]) -> None:
    low, high = wilson(sum(outcomes), len(outcomes))
    _tell(name, share=sum(outcomes) / len(outcomes), low=low, high=high, of=len(outcomes))


def _tell(name: str, **figures: float) -> None:
    print(json.dumps({"figure": name, **{k: round(v, 4) for k, v in figures.items()}}), flush=True)


if __name__ == "__main__":
    main()
