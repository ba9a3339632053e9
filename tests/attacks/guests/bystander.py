"""What a user does while others attack: generates a text, and sends each token as it comes."""

from inferlet import Context, Model, Sampler, session

PROMPT = "The capital of Argon is"


async def main(args: list[str]) -> str:
    """Generates as many tokens as the first argument says; the result is the text."""
    context = Context(Model.load(), prefix_cache=False).fill(PROMPT)
    text = ""
    async for piece in context.generate(
        Sampler.argmax(), max_tokens=int(args[0]), stop=[]
    ).stream_text():
        session.send(piece)
        text += piece
    return text
