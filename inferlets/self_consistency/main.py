"""Self-consistency: several ways to an answer are sampled at once, and the answers vote."""

import re
from collections import Counter

from inferlet import Context, Model, Sampler, gather


async def main(
    question: str = "What is 880 - 826?",
    votes: int = 8,
    temperature: float = 0.8,
    max_tokens: int = 160,
    pattern: str = "Answer: (.*)",
    seed: int = 1,
) -> dict[str, object]:
    """Returns the answer that most samples give, and the votes.

    Args:
        question: what to answer.
        votes: how many samples.
        temperature: of the sampling.
        max_tokens: most tokens of a sample.
        pattern: what the answer is in a sample, as a regular expression with a group.
        seed: makes it repeatable.
    """
    context = Context(Model.load()).user(question).cue()
    await context.flush()
    samplers = [Sampler.multinomial(temperature, seed + i) for i in range(votes)]
    texts = await gather(
        *(context.fork().generate(s, max_tokens=max_tokens).collect_text() for s in samplers)
    )
    found = [match[1] for text in texts if (match := re.search(pattern, text))]
    counted = Counter(found).most_common()
    return {"answer": counted[0][0] if counted else None, "votes": dict(counted)}
