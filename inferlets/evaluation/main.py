"""An evaluation harness: which choice the model finds likeliest, and how often that is right.

All choices of a question are scored in one batch over its pages, and many questions at once.
"""

import json
from statistics import mean
from typing import Any

from inferlet import Context, Model, gather, session

ITEMS = [
    {"question": "The colour of coal is", "choices": [" black.", " white."], "answer": 0},
    {"question": "Once upon a", "choices": [" bread", " time", " flag"], "answer": 1},
]


async def main(
    items: str = "", at_once: int = 8, model_name: str | None = None
) -> dict[str, object]:
    """Sends a line for each question; returns the accuracy, plain and by length (as lm-eval's).

    Args:
        items: JSON, a list of `{"question", "choices", "answer"}`; `@FILE` reads a file.
        at_once: questions that run at the same time.
        model_name: one that the server serves.
    """
    asked = json.loads(items) if items else ITEMS
    model, right = Model.load(model_name), list[tuple[bool, bool]]()

    async def judge(item: dict[str, Any]) -> tuple[bool, bool]:
        choices, context = item["choices"], Context(model)
        logs = await context.fill(item["question"]).score(choices)
        totals = [sum(one) for one in logs]
        lengths = [total / len(c.encode()) for total, c in zip(totals, choices, strict=True)]
        picked = [scores.index(max(scores)) == item["answer"] for scores in (totals, lengths)]
        session.send(json.dumps({**item, "logs": totals}) + "\n")
        return picked[0], picked[1]

    for start in range(0, len(asked), at_once):
        right += await gather(*map(judge, asked[start : start + at_once]))
    return {"accuracy": mean(a for a, _ in right), "by_length": mean(b for _, b in right)}
