"""The evaluation harness: scores as transformers computes them, by lm-eval's definitions."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from support import reference
from support.library import Library


def first_token(library: Library) -> int:
    """What lm-eval has before a text: the configuration's first token, be it added or not."""
    (model,) = (each for each in library.client.models() if each["name"] == "test")
    token: int = model["bos_token"]
    assert token != model["stop_tokens"][0]
    return token


def log_likelihood(library: Library, before: list[int], tokens: list[int]) -> float:
    """Of tokens behind others, by plain transformers."""
    total, before = 0.0, [*before]
    for token in tokens:
        total += reference.probabilities(library.checkpoint, before)[token].log().item()
        before.append(token)
    return total


def score(library: Library, **item: Any) -> dict[str, Any]:
    found: dict[str, Any] = library.run("evaluation", model_name="test", **item)
    return found


@pytest.mark.parametrize(
    ("question", "choices"),
    [
        ("The quick", ["brown fox", "dog"]),
        ("Once upon ", ["a time", "ä", "a"]),  # its last space is the choice's
        ("", ["The end"]),
    ],
)
def test_choices(library: Library, question: str, choices: list[str]) -> None:
    begins = question.rstrip()
    before = library.encode(begins)
    start = before or [first_token(library)]
    logs = []
    for choice in choices:
        whole = library.encode(begins + question[len(begins) :] + " " + choice)
        logs.append(log_likelihood(library, start, whole[len(before) :]))
    lengths = [len(choice) for choice in choices]
    sizes = [len(choice.encode()) for choice in choices]
    for answer in range(len(choices)):
        found = score(library, question=question, choices=choices, answer=answer)
        assert found["logs"] == pytest.approx(logs, abs=1e-3)
        assert found["acc"] == (np.argmax(logs) == answer)
        assert found["acc_norm"] == (np.argmax(np.divide(logs, lengths)) == answer)
        assert found["acc_bytes"] == (np.argmax(np.divide(logs, sizes)) == answer)


def test_a_text_longer_than_the_window(library: Library) -> None:
    text = "The quick brown fox\njumps over  the lazy dog, and the dog sleeps."
    tokens = library.encode(text)
    size = 5
    total = log_likelihood(library, [first_token(library)], tokens[:size])
    for start in range(size, len(tokens), size):  # the last part has a whole window behind it
        end = min(start + size, len(tokens))
        total += log_likelihood(library, tokens[end - size - 1 : start], tokens[start:end])
    found = score(library, text=text, window=size)
    assert found["loglikelihood"] == pytest.approx(total, abs=1e-3)
    assert (found["words"], found["bytes"]) == (13, len(text))


def test_exact_matches(library: Library) -> None:
    said = library.complete("Once upon a", 4)
    item = {"question": "Once upon a", "max_tokens": 4}
    assert library.run("evaluation", target=said, **item) == {"exact_match": 1, "text": said}
    other = said.upper() + "!"
    assert library.run("evaluation", target=other, **item)["exact_match"] == 0
    ignored = {**item, "ignore": ["case", "punctuation"]}
    assert library.run("evaluation", target=other, **ignored)["exact_match"] == 1
    word = said.split()[0]
    found = library.run("evaluation", target=word, pattern=r"(\w+)", **item)
    assert found["exact_match"] == 1
    cut = library.run("evaluation", target="", until=[said[:3]], **item)
    assert cut == {"exact_match": 1, "text": ""}


def test_totals_have_standard_errors(library: Library) -> None:
    choices = [{"acc": a, "acc_norm": b, "acc_bytes": 1} for a, b in ((1, 0), (0, 0), (1, 1))]
    texts = [(-30.0, 10, 50), (-12.0, 6, 31), (-44.5, 20, 99)]
    scores = [*choices, *({"loglikelihood": x, "words": y, "bytes": z} for x, y, z in texts)]
    lines = [*({"line": 1, "result": each} for each in scores), {"line": 9, "error": {}}]
    instance = library.launch("evaluation")
    for line in lines:
        instance.send(json.dumps(line))
    instance.send("")
    found = json.loads(instance.result())
    assert found["acc"]["value"] == pytest.approx(2 / 3)
    assert found["acc"]["stderr"] == pytest.approx(np.std([1, 0, 1], ddof=1) / math.sqrt(3))
    assert (found["acc_bytes"]["stderr"], found["acc_norm"]["items"]) == (0, 3)
    logs, words, sizes = map(np.array, zip(*texts, strict=True))
    assert found["word_perplexity"]["value"] == pytest.approx(np.exp(-logs.sum() / words.sum()))
    assert found["byte_perplexity"]["value"] == pytest.approx(np.exp(-logs.sum() / sizes.sum()))
    bits = -logs.sum() / sizes.sum() / math.log(2)
    assert found["bits_per_byte"]["value"] == pytest.approx(bits)
    left_out = []  # the jackknife, which agrees for few differences
    for n in range(3):
        keep = np.arange(3) != n
        left_out.append(-logs[keep].sum() / sizes[keep].sum() / math.log(2))
    jackknife = math.sqrt(2 / 3 * sum((each - np.mean(left_out)) ** 2 for each in left_out))
    assert found["bits_per_byte"]["stderr"] == pytest.approx(jackknife, rel=0.3)
