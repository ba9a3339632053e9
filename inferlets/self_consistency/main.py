"""Self-consistency: several ways to an answer are sampled at once, and the answers vote.

It is for instruct models: those with a chat template.
"""

from collections import Counter

from inferlet import Context, Grammar, Model, Sampler, gather


async def main(
    question: str = "What is 880 - 826?",
    votes: int = 8,
    temperature: float = 0.8,
    max_tokens: int = 640,
    answer: str = "-?[0-9]{1,9}",
    seed: int = 1,
) -> dict[str, object]:
    """Returns the answer that most samples give, and the votes.

    Args:
        question: what to answer.
        votes: how many samples.
        temperature: of the sampling.
        max_tokens: most tokens of a sample, which has up to six lines before its answer.
        answer: what follows `Answer: ` there, as a regular expression.
        seed: makes it repeatable.
    """
    context = Context(Model.load()).user(question).cue()
    await context.flush()
    shape = Grammar.regex(rf"([^\n]{{0,100}}\n){{0,6}}Answer: {answer}")

    async def vote(number: int) -> str:
        sampler = Sampler.multinomial(temperature, seed + number)
        sample = context.fork().generate(sampler, grammar=shape, max_tokens=max_tokens)
        text = await sample.collect_text()
        if not sample.is_complete:
            raise SystemExit(f"cut short: give more --max-tokens than an answer needs, {text!r}")
        return text.rpartition("Answer: ")[2]

    counted = Counter(await gather(*map(vote, range(votes)))).most_common()
    return {"answer": counted[0][0], "votes": dict(counted)}
