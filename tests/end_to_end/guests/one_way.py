"""Each sampler's tokens, however they are read."""

import json

from inferlet import Context, Model, Sampler, gather, session


async def tokens(model, prompt, sampler, way):
    """The tokens of one generation, read in a way."""
    context = Context(model).append(prompt)
    generation = context.generate(sampler, max_tokens=12, stop=[])
    if way == "text":
        await generation.collect_text()
        return context.tokens[len(prompt) :]
    if way == "tokens":
        return await generation.collect_tokens()
    if way == "stream":
        return [token async for token in generation.stream_tokens()]
    found: list[int] = []
    async for step in generation:
        if way == "looks" and len(found) % 3 == 1:
            await step.distribution(5)
        found += (await step.execute()).tokens
    return found


async def main(args):
    prompt, *samplers = map(json.loads, args)
    model = Model.load()
    for parameters in samplers:
        sampler = Sampler(**parameters)
        alone = await tokens(model, prompt, sampler, "tokens")
        ways = ("text", "tokens", "stream", "steps", "looks")
        among = await gather(*(tokens(model, prompt, sampler, way) for way in ways))
        session.send(json.dumps([alone, *among]))
    return "done"
