"""Continues a prompt, and sends the text as it comes."""

from inferlet import Context, Model, Sampler


async def main(prompt: str, max_tokens: int = 64) -> str:
    """What `pie-py run . --help` tells.

    Args:
        prompt: the text to go on from.
        max_tokens: the most tokens to add.
    """
    context = Context(Model.load()).fill(prompt)
    await context.generate(Sampler.top_p(0.7, 0.9), max_tokens=max_tokens).send_text()
    return ""
