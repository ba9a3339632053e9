"""A conversation without end: when it grows too long, its beginning gives way to a summary.

The client sends texts and gets answers; an empty text ends it.
"""

from inferlet import Context, Model, session


async def main(
    most: int = 160,
    keep: int = 48,
    instruction: str = "What has happened?",
    summary_tokens: int = 24,
    max_tokens: int = 24,
) -> dict[str, object]:
    """Returns the turns, how often it was summarised, and the most tokens that there were.

    Args:
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
    while text := await session.receive():
        context.user(text)
        session.send(await context.generate(max_tokens=max_tokens).collect_text())
        turns, longest = turns + 1, max(longest, len(context))
        if len(context) > most:
            asked = context.fork().user(instruction)
            summaries.append(await asked.generate(max_tokens=summary_tokens).collect_text())
            last = context.tokens[max(0, len(context) - keep) :]
            context = Context(model).system(summaries[-1]).append(last)
    return {"turns": turns, "summaries": summaries, "longest": longest}
