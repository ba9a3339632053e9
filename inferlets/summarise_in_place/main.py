"""A conversation without end: when it grows too long, its beginning gives way to a summary.

What the user says is given by `--messages`, or sent by the client, for which the program waits; an
empty text ends it. It is for instruct models: those with a chat template.
"""

from inferlet import Context, Model, runtime, session


async def main(
    messages: list[str] | None = None,
    most: int = 160,
    keep: int = 48,
    instruction: str = "What has happened?",
    summary_tokens: int = 24,
    max_tokens: int = 24,
) -> dict[str, object]:
    """Returns the turns, how often it was summarised, and the most tokens that there were.

    Args:
        messages: what the user says, turn by turn; without them the client sends it.
        most: tokens from which on it is summarised.
        keep: last tokens that stay as they are.
        instruction: what is asked for the summary.
        summary_tokens: most tokens of it.
        max_tokens: most tokens of an answer.
    """
    model = Model.load()
    context = Context(model)
    turns = longest = 0
    summaries: list[str] = []
    if messages is None:
        runtime.log("waiting for texts of the client; an empty one ends it")
    texts = [*(messages or ()), ""]
    while text := await session.receive() if messages is None else texts.pop(0):
        context.user(text)
        session.send(await context.generate(max_tokens=max_tokens).collect_text() + "\n")
        turns, longest = turns + 1, max(longest, len(context))
        if len(context) > most:
            asked = context.fork().user(instruction)
            summaries.append(await asked.generate(max_tokens=summary_tokens).collect_text())
            last = context.tokens[max(0, len(context) - keep) :]
            context = Context(model).system(summaries[-1]).append(last)
    return {"turns": turns, "summaries": summaries, "longest": longest}
