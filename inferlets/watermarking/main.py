"""A watermark (Kirchenbauer et al.): after each token, a hash makes half of all tokens likelier.

The detector needs no model: it counts such tokens, and says how unlikely their number is by chance.
"""

import math
import random
import zlib
from itertools import pairwise

from inferlet import Context, Model


def is_green(before: int, token: int) -> bool:
    """Whether the hash favours a token after another one."""
    return zlib.crc32(b"%d %d" % (before, token)) & 1 == 0


def z_score(tokens: list[int]) -> float:
    """Standard deviations by which favoured tokens outnumber half of them."""
    pairs = list(pairwise(tokens))
    green = sum(is_green(before, token) for before, token in pairs)
    return (green - len(pairs) / 2) / math.sqrt(len(pairs) / 4)


async def main(
    prompt: str = "Once upon a time",
    delta: float = 4.0,
    max_tokens: int = 60,
    seed: int = 1,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, the detector's score, and the mean log-probability per token.

    Args:
        prompt: what to continue.
        delta: what is added to the logits of favoured tokens; 0 makes no mark.
        max_tokens: tokens of the text.
        seed: makes it repeatable.
        model_name: one that the server serves.
    """
    context = Context(Model.load(model_name)).fill(prompt)
    tokens, draw, quality = context.tokens[-1:], random.Random(seed), 0.0
    generator = context.generate(max_tokens=max_tokens, stop=[])
    async for step in generator:
        likely = await step.distribution()
        weights = [
            p * math.exp(delta * is_green(tokens[-1], token))
            for token, p in zip(likely.tokens, likely.probabilities, strict=True)
        ]
        tokens += generator.accept(draw.choices(likely.tokens, weights))
        quality += likely.logprob(tokens[-1])
    return {
        "text": context.model.tokenizer.decode(tokens[1:]),
        "z": z_score(tokens),
        "mean_logprob": quality / max_tokens,
    }
