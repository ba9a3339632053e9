"""Best of n: several answers are sampled at once; a value model says which is the best, or the
model itself which is the likeliest.
"""

from inferlet import Context, Model, Sampler, gather


async def main(
    prompt: str = "The best way to learn is",
    answers: int = 4,
    temperature: float = 0.8,
    max_tokens: int = 24,
    seed: int = 1,
    value_model: str = "",
) -> list[dict[str, object]]:
    """Returns the answers, the best first, with the value model's score, or the mean
    log-probability of their tokens.

    Args:
        prompt: what to continue.
        answers: how many are sampled.
        temperature: of the sampling.
        max_tokens: most tokens of an answer.
        seed: makes it repeatable.
        value_model: a cross-encoder or reward model that is served, for pairs of prompt and answer.
    """
    context = Context(Model.load()).fill(prompt)
    await context.flush()
    samplers = [Sampler.multinomial(temperature, seed + i) for i in range(answers)]
    sampled = await gather(
        *(context.fork().generate(s, max_tokens=max_tokens).collect_tokens() for s in samplers)
    )
    tokens = [each for each in sampled if each]
    texts = [context.model.tokenizer.decode(each) for each in tokens]
    if value_model:
        scores = await Model.load(value_model).score([(prompt, text) for text in texts])
    else:
        scores = [sum(logs) / len(logs) for logs in await context.score(tokens)]
    ranked = sorted(zip(scores, texts, strict=True), reverse=True)
    return [{"text": text, "score": score} for score, text in ranked]
