"""An approval agent: plans, counts its order once, and waits for a person for as long as it takes.

Launched as durable it goes on after a crash of the server or of the machine: what it has asked the
model, counted and sent stays, and nothing is done twice.
"""

from inferlet import Context, Model, session, store


async def main(question: str, answer: str | None = None, max_tokens: int = 16) -> dict[str, object]:
    """Returns the number of the order, the plan, and what came after the answer.

    Args:
        question: what the plan answers; the text goes on from there.
        answer: the person's; without it the client sends it, for which the program waits.
        max_tokens: most tokens of the plan, and of the words behind the answer.
    """
    context = Context(Model.load()).fill(question)
    plan = await context.generate(max_tokens=max_tokens).collect_text()
    order = int(await store.update("orders", lambda old: str(int(old or b"0") + 1)))
    session.send(f"Order {order}: {plan.strip()} Shall I?\n")
    if answer is None:
        answer = str(await session.receive())
    words = await context.fill(f" {answer}").generate(max_tokens=max_tokens).collect_text()
    return {"order": order, "plan": plan, "answer": answer, "words": words}
