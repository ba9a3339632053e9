"""The tokenizer of pie-tiny: byte-level BPE, trained on the corpus itself.

Run it with `python -m examples.pie_tiny.tokenizer FOLDER`; the trainer does, where there is none.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from examples.pie_tiny.corpus.functions import ESTIMATE_TOKENS
from examples.pie_tiny.corpus.mixture import draw
from examples.pie_tiny.corpus.sample import BEGIN, END, SPECIAL_TOKENS, Sample, Split

ENTRIES = 2304
AFTER_SPACE = 900
"""So many of the entries are a space and the start of a word."""
SPACE = "\u0120"
"""How byte-level BPE writes the space."""
SAMPLES = 30_000
"""Drawn to train on; more of them change nothing."""
CONTEXT = 2048
IGNORED = -100
"""The target of a token that the model does not have to write, as PyTorch's losses take it."""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def train_tokenizer(seed: str, samples: int = SAMPLES) -> Tokenizer:
    """Trains it on so many samples of the corpus. Deterministic.

    A word is cut in the same way with and without a space before it: first the merges inside words
    are learnt, and only after them come those that join a space to a word's first token. So a name
    copied from a sentence into a call is copied token by token.
    """
    texts = [
        piece.text for number in range(samples) for piece in draw(seed, number, Split()).pieces
    ]
    inside = Tokenizer(models.BPE())
    space = pre_tokenizers.Split(" ", "isolated")
    inside.pre_tokenizer = pre_tokenizers.Sequence([space, _digits(), _bytes()])
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES - AFTER_SPACE,
        special_tokens=[
            AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inside.train_from_iterator(texts, trainer)
    return _with_spaces(inside, _most_common_after_space(inside, texts))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json`, its configuration and the chat template, as `transformers` reads
    them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "tokenizer.json.part"
    tokenizer.save(str(part), pretty=False)
    part.replace(
        folder / "tokenizer.json"
    )  # whole or not at all: a run that was killed goes on with it
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "additional_special_tokens": [
            token for token in SPECIAL_TOKENS if token not in (BEGIN, END)
        ],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    text = json.dumps(configuration, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def encode(tokenizer: Tokenizer, samples: list[Sample]) -> list[tuple[list[int], list[int]]]:
    """Token ids and targets of samples.

    The target at a position is the token itself where the model has to write it, else `IGNORED`;
    nothing is shifted yet.
    """
    texts = [piece.text for sample in samples for piece in sample.pieces]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    result = []
    for sample in samples:
        ids: list[int] = []
        targets: list[int] = []
        for piece in sample.pieces:
            tokens = next(encoded).ids
            ids += tokens
            targets += tokens if piece.learned else [IGNORED] * len(tokens)
        result.append((ids, targets))
    return result


def _most_common_after_space(tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    counts: Counter[str] = Counter()
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        tokens = encoding.tokens
        counts.update(
            after for before, after in pairwise(tokens) if before == SPACE and after != SPACE
        )
    for token in SPECIAL_TOKENS:
        del counts[token]
    return [
        token
        for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:AFTER_SPACE]
    ]


def _with_spaces(inside: Tokenizer, firsts: list[str]) -> Tokenizer:
    model = json.loads(inside.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    merges = [(left, right) for left, right in model["merges"]]
    for first in firsts:
        vocabulary[SPACE + first] = len(vocabulary)
        merges.append((SPACE, first))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_digits(), _bytes()])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ESTIMATE_TOKENS])
    # As Llama's: a program that completes a text need not know that texts start with it.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, SPECIAL_TOKENS.index(BEGIN))]
    )
    return tokenizer


def _digits() -> pre_tokenizers.Digits:
    """A digit is a token: arithmetic and comparing times go digit by digit."""
    return pre_tokenizers.Digits(individual_digits=True)


def _bytes() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


if __name__ == "__main__":
    save_tokenizer(train_tokenizer("pie-tiny"), Path(sys.argv[1]))
