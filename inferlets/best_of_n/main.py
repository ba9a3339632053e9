"""Best of n: several answers are sampled at once, and the model says which is the likeliest."""

from inferlet import Context, Model, Sampler, gather


async def main(
    prompt: str = "The best way to learn is",
    answers: int = 4,
    temperature: float = 0.8,
    max_tokens: int = 24,
    seed: int = 1,
) -> list[dict[str, object]]:
    """Returns the answers, the best first, with the mean log-probability of their tokens.

    Args:
        prompt: what to continue.
        answers: how many are sampled.
        temperature: of the sampling.
        max_tokens: most tokens of an answer.
        seed: makes it repeatable.
    """
    context = Context(Model.load()).fill(prompt)
    await context.flush()
    samplers = [Sampler.multinomial(temperature, seed + i) for i in range(answers)]
    sampled = await gather(
        *(context.fork().generate(s, max_tokens=max_tokens).collect_tokens() for s in samplers)
    )
    texts = [tokens for tokens in sampled if tokens]
    scores = [sum(logs) / len(logs) for logs in await context.score(texts)]
    decode = context.model.tokenizer.decode
    ranked = sorted(zip(scores, texts, strict=True), reverse=True)
    return [{"text": decode(tokens), "score": score} for score, tokens in ranked]
