"""A thinking budget (s1): thoughts are cut where it ends, and go on where they stop too early.

It is for instruct models: those with a chat template.
"""

from inferlet import Context, Model


async def main(
    question: str = "What is 47 + 38?",
    at_least: int = 0,
    at_most: int = 64,
    marker: str = "Answer:",
    wait: str = "Wait\n",
    max_tokens: int = 16,
) -> dict[str, object]:
    """Returns the thoughts, how many tokens they have, and the answer.

    Args:
        question: what to answer.
        at_least: tokens of thoughts; where they end before, `wait` makes the model go on.
        at_most: tokens of thoughts, `wait` not counted.
        marker: what begins the answer.
        wait: what the model reads in place of the marker.
        max_tokens: most tokens of the answer.
    """
    context = Context(Model.load()).user(question).cue()
    start, thought, waits = len(context), 0, 0
    while True:
        before = len(context)
        stop: list[int | str] = [marker, *context.model.stop_tokens]
        await context.generate(max_tokens=at_most - thought, stop=stop).collect_text()
        text = context.model.tokenizer.decode(context.tokens[before:])
        ended = len(context) - before < at_most - thought or marker in text
        tail = text.rpartition(marker)[0] if marker in text else text
        context.truncate(before).append(context.model.tokenizer.encode(tail))
        thought += len(context) - before
        if not ended or thought >= at_least or waits == 8:
            break
        context.fill(wait)
        waits += 1
    thoughts = context.model.tokenizer.decode(context.tokens[start:])
    line = "" if not thoughts or thoughts.endswith("\n") else "\n"
    answer = await context.fill(line + marker).generate(max_tokens=max_tokens).collect_text()
    if not answer.strip():
        raise SystemExit(f"the model wrote no answer after {thoughts!r} and {marker!r}")
    return {"thoughts": thoughts, "tokens": thought, "waits": waits, "answer": answer.strip()}
