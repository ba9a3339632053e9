"""A conversation: every text that the client sends is a turn, an empty one ends it.

Each answer ends with an empty text. The model needs a chat template.

Run: pie-py serve --model MODEL
     python examples/chat_client.py     (beside it; asks on the terminal)
"""

from inferlet import Context, Model, Sampler, session


async def main(system: str = "") -> str:
    """Answers turn by turn; the conversation so far stays in the KV pages."""
    context = Context(Model.load())
    if system:
        context.system(system)
    turns = 0
    while message := await session.receive():
        context.user(message)
        await context.generate(Sampler.top_p(0.7, 0.9), max_tokens=256).send_text()
        session.send("\n")
        session.send("")
        turns += 1
    return f"{turns} turns"
