"""Self-consistency: several ways to an answer are sampled at once, and the answers vote."""

import re
from collections import Counter

from inferlet import Context, Grammar, Model, Sampler, gather


async def main(
    question: str = "What is 880 - 826?",
    votes: int = 8,
    temperature: float = 0.8,
    max_tokens: int = 160,
    answer: str = "-?[0-9]{1,9}",
    seed: int = 1,
) -> dict[str, object]:
    """Returns the answer that most samples give, and the votes.

    Args:
        question: what to answer.
        votes: how many samples.
        temperature: of the sampling.
        max_tokens: most tokens of a sample.
        answer: what follows `Answer: `, as a regular expression; a model that does not write it by
            itself is made to.
        seed: makes it repeatable.
    """
    context = Context(Model.load()).user(question).cue()
    await context.flush()
    shape = Grammar.regex(f" {answer}")

    async def vote(number: int) -> str:
        sample, sampler = context.fork(), Sampler.multinomial(temperature, seed + number)
        text = await sample.generate(sampler, max_tokens=max_tokens).collect_text()
        if (match := re.search(f"Answer: ({answer})", text)) is not None:
            return match[1]
        last = sample.fill("\nAnswer:").generate(sampler, grammar=shape, max_tokens=32)
        return (await last.collect_text()).strip()

    counted = Counter(await gather(*map(vote, range(votes)))).most_common()
    return {"answer": counted[0][0], "votes": dict(counted)}
