"""Beam search: the likeliest texts of a length, as `transformers` finds them.

Beams are forks: they share the pages of what they have in common, and all run in one batch. The
last of a beam's children goes on with its context, so that few queues are made.
"""

import math
from collections import Counter

from inferlet import Context, Model, gather


async def main(
    prompt: str = "The capital of",
    width: int = 4,
    max_tokens: int = 16,
    length_penalty: float = 1.0,
    model_name: str | None = None,
) -> list[dict[str, object]]:
    """Returns the beams, best first: text, tokens, and log-probability per token.

    Args:
        prompt: what to continue.
        width: number of beams.
        max_tokens: most tokens of a beam.
        length_penalty: the score is the log-probability by the length to this power.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    beams: list[tuple[float, list[int], Context]] = [(0.0, [], Context(served).fill(prompt))]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, max_tokens + 1):
        found = await gather(*(context.distribution(2 * width) for *_, context in beams))
        candidates = sorted(
            (
                (score + math.log(probability), beam, token)
                for beam, ((score, *_), likely) in enumerate(zip(beams, found, strict=True))
                for token, probability in zip(likely.tokens, likely.probabilities, strict=True)
            ),
            reverse=True,
        )[: 2 * width]
        for score, beam, token in candidates[:width]:
            if token in served.stop_tokens:
                ended.append((score / length**length_penalty, beams[beam][1]))
        going = [one for one in candidates if one[2] not in served.stop_tokens][:width]
        left, grown = Counter(beam for _, beam, _ in going), []
        for score, beam, token in going:
            left[beam] -= 1
            context = beams[beam][2].fork() if left[beam] else beams[beam][2]
            grown.append((score, [*beams[beam][1], token], context.append([token])))
        beams = grown
        ended = sorted(ended, reverse=True)[:width]
        if len(ended) == width and ended[-1][0] >= beams[0][0] / length**length_penalty:
            break
    ended += [(score / max(1, len(tokens)) ** length_penalty, tokens) for score, tokens, _ in beams]
    return [
        {"text": served.tokenizer.decode(tokens), "tokens": tokens, "score": score}
        for score, tokens in sorted(ended, reverse=True)[:width]
    ]
