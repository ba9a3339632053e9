"""An evaluation harness: scores of items by multiple choice, exact match or perplexity, as lm-eval
defines them; and of all scores the means, with standard errors.

An item is a line of a file, `pie-py batch items.jsonl evaluation -o scores.jsonl`, and
`pie-py run evaluation < scores.jsonl` reads the scores.
"""

import json
import math
import re
import string
from collections import defaultdict
from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

from inferlet import Context, Model, Sampler, session

PUNCTUATION = str.maketrans("", "", string.punctuation)
PERPLEXITIES = {"word_perplexity": "words", "byte_perplexity": "bytes"}


def first_token(model: Model, given: str) -> int:
    """The token before a text of which each token is to be predicted."""
    if given:
        return model.tokenizer.encode(given)[0]
    begin: int | None = model.info["begin_token"]
    return model.stop_tokens[0] if begin is None else begin


async def choose(model: Model, question: str, choices: list[str], delimiter: str) -> list[float]:
    """The log-likelihood of each choice after a question."""
    encode = model.tokenizer.encode
    begins = question.rstrip()  # spaces belong to the word behind them
    spaces = question[len(begins) :] + delimiter
    before = encode(begins)
    tails = [encode(begins + spaces + each)[len(before) :] for each in choices]
    before = before[-(model.max_position - max(map(len, tails))) :]
    start = [first_token(model, "")] if model.bos_token is not None or not before else []
    with Context(model).append(start + before) as context:
        return [sum(logs) for logs in await context.score(tails)]


def chosen(scores: list[float], answer: int) -> int:
    """1 if the answer has the largest score, else 0."""
    return int(scores.index(max(scores)) == answer)


def extracted(pattern: str, text: str) -> str:
    """The first match of a pattern in a text: its first group, if it has one."""
    found = re.search(pattern, text)
    return "[invalid]" if found is None else found[found.re.groups > 0].strip()


def matches(text: str, targets: list[str], ignore: list[str]) -> int:
    """1 if a text is one of the targets, but for what is ignored: `case`, `punctuation`."""
    texts = [text, *targets]
    if "case" in ignore:
        texts = [each.lower() for each in texts]
    if "punctuation" in ignore:
        texts = [each.translate(PUNCTUATION) for each in texts]
    return int(texts[0] in texts[1:])


def windows(tokens: list[int], first: int, size: int) -> Iterator[tuple[list[int], list[int]]]:
    """The parts of a long text: what is before each, within the model's context, and its tokens."""
    yield [first], tokens[:size]
    for start in range(size, len(tokens), size):
        end = min(start + size, len(tokens))
        yield tokens[end - size - 1 : start], tokens[start:end]


async def likelihood(model: Model, text: str, first: int, size: int) -> float:
    """The log-likelihood of a whole text."""
    total = 0.0
    for before, part in windows(model.tokenizer.encode(text), first, size):
        with Context(model).append(before) as context:
            total += sum((await context.score([part]))[0])
    return total


def ratio(scores: list[dict[str, float]], unit: str) -> tuple[float, float]:
    """The log-likelihood lost per unit of all texts, and its standard error (delta method)."""
    units, count = sum(each[unit] for each in scores), len(scores)
    found = -sum(each["loglikelihood"] for each in scores) / units
    off = sum((each["loglikelihood"] + found * each[unit]) ** 2 for each in scores)
    return found, math.sqrt(off * count / max(count - 1, 1)) / units


def totals(scores: list[dict[str, float]]) -> dict[str, Any]:
    """Of each score its mean over the items that have it, and the standard error of that."""
    columns, found = defaultdict[str, list[float]](list), dict[str, Any]()
    for each in scores:
        for name in ("acc", "acc_norm", "acc_bytes", "exact_match"):
            if name in each:
                columns[name].append(each[name])
    for name, values in columns.items():
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        found[name] = {"value": mean(values), "stderr": error, "items": len(values)}
    if texts := [each for each in scores if "loglikelihood" in each]:
        for name, unit in PERPLEXITIES.items():
            lost, error = ratio(texts, unit)
            value = math.exp(lost)
            found[name] = {"value": value, "stderr": value * error, "items": len(texts)}
        bits, off = (each / math.log(2) for each in ratio(texts, "bytes"))
        found["bits_per_byte"] = {"value": bits, "stderr": off, "items": len(texts)}
    return found


async def main(
    question: str = "",
    choices: list[str] | None = None,
    answer: int = 0,
    target: str | list[str] | None = None,
    text: str | None = None,
    *,
    delimiter: str = " ",
    until: list[str] | None = None,
    max_tokens: int = 256,
    pattern: str = "",
    ignore: list[str] | None = None,
    first: str = "",
    window: int | None = None,
    model_name: str | None = None,
) -> dict[str, Any]:
    """Returns the scores of an item; without one, the totals of the scores that it is sent, lines
    of `pie-py batch`.

    Args:
        question: what comes before the choices, or before the text that is generated.
        choices: what may follow, one of which is right.
        answer: the number of that one.
        target: what the generated text has to be, or one of several such texts.
        text: of which the perplexity is wanted.
        delimiter: between the question and a choice.
        until: what ends the generated text; by default an empty line.
        max_tokens: most tokens of it.
        pattern: a regular expression; its first match is compared, its first group if it has one.
        ignore: in comparisons: `case`, `punctuation`.
        first: the token before a text; by default the one that the model's configuration has for
            the beginning of texts, or that ends them.
        window: tokens that are predicted at once; by default the model's context.
        model_name: one that the server serves.
    """
    if choices is None and target is None and text is None:
        lines = list[dict[str, Any]]()
        while line := await session.receive():
            lines.append(json.loads(line))
        return totals([each["result"] for each in lines if "result" in each])
    model = Model.load(model_name)
    if choices is not None:
        logs = await choose(model, question, choices, delimiter)
        by_length = [log / len(each) for log, each in zip(logs, choices, strict=True)]
        by_bytes = [log / len(each.encode()) for log, each in zip(logs, choices, strict=True)]
        scores = {"acc": logs, "acc_norm": by_length, "acc_bytes": by_bytes}
        return {**{name: chosen(each, answer) for name, each in scores.items()}, "logs": logs}
    if target is not None:
        ends: list[str | int] = [*(["\n\n"] if until is None else until), *model.stop_tokens]
        with Context(model).fill(question) as context:
            generation = context.generate(Sampler.argmax(), max_tokens=max_tokens, stop=ends)
            said = await generation.collect_text()
        targets = [target] if isinstance(target, str) else target
        compared = extracted(pattern, said) if pattern else said
        return {"exact_match": matches(compared, targets, ignore or []), "text": said}
    assert text is not None
    size = window or model.max_position
    found = await likelihood(model, text, first_token(model, first), size)
    words = len(re.split(r"\s+", text))
    return {"loglikelihood": found, "words": words, "bytes": len(text.encode())}
