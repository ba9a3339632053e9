"""Generations that read a part of their context, alone and beside others; and what is refused."""

import json

from inferlet import Context, Model, PieError, Sampler, attention, device, gather, raw

TOKENS = 40
POLICIES = {
    "whole": None,
    "all pages": attention.quest(pages=512, full_layers=0),
    "quest": attention.quest(pages=2, full_layers=1),
    "sinks": attention.sinks(first=4, window=12),
    "h2o": attention.h2o(heavy=6, recent=4),
    "snapkv": attention.snapkv(budget=5, window=3),
    "tova": attention.tova(budget=9),
}


async def text(model, prompt, attend, sampler=None):
    ctx = Context(model)
    ctx.append(prompt)
    options = {"max_tokens": TOKENS, "stop": [], "attend": attend}
    return await ctx.generate(sampler, **options).collect_tokens()


async def flushed(model, prompt):
    """Texts of which the prompt has run before: what programs are told of it runs again."""
    found = {}
    for name in ("h2o", "snapkv", "tova"):
        ctx = Context(model)
        ctx.append(prompt)
        await ctx.flush()
        generator = ctx.generate(max_tokens=TOKENS, stop=[], attend=POLICIES[name])
        found[name] = await generator.collect_tokens()
    return found


async def forked(model, prompt):
    """Two forks of one context, each with its own program, and the context that goes on."""
    ctx = Context(model)
    ctx.append(prompt)
    await ctx.flush()
    forks = [ctx.fork(), ctx.fork()]
    names = ["tova", "h2o", "whole"]
    return await gather(
        *(
            one.generate(max_tokens=TOKENS, stop=[], attend=POLICIES[name]).collect_tokens()
            for one, name in zip([*forks, ctx], names, strict=True)
        )
    )


async def read_in_parts(model, prompt):
    """A stream that is left after some tokens."""
    ctx = Context(model)
    ctx.append(prompt)
    generator = ctx.generate(max_tokens=TOKENS, stop=[], attend=POLICIES["tova"])
    tokens = []
    async for token in generator.stream_tokens():
        tokens.append(token)
        if len(tokens) == 7:
            break
    return tokens


async def read_by_steps(model, prompt):
    ctx = Context(model)
    ctx.append(prompt)
    generator = ctx.generate(max_tokens=7, stop=[], attend=POLICIES["h2o"])
    return [token async for step in generator for token in (await step.execute()).tokens]


async def a_look(model):
    ctx = Context(model)
    ctx.append([5, 6, 7])
    try:
        async for step in ctx.generate(max_tokens=3, attend=POLICIES["sinks"]):
            await step.distribution()
            await step.execute()
    except ValueError as error:
        return str(error)


def refusal(queue, attend):
    try:
        raw.create_sampler(queue, json.dumps({"attend": attend}))
    except PieError as error:
        return str(error)
    return "none"


async def refusals(model):
    ctx = Context(model)
    queue = ctx.queue
    sinks = attention.sinks().to_dict()

    @device.attend
    def wide(weights):
        one = weights.transpose() @ weights.max()
        for _ in range(12):
            one = one.descending().to_float()
        return (weights.transpose().argsort().sum() + one.to_int()) > 0

    pages = "def rule(weights): return iota(PAGES) < weights.max().sum().to_int()"
    found = [
        refusal(queue, {**sinks, "given": {"x": "text"}}),
        refusal(queue, {"program": [["own.py", 1, "def rule(logits): return logits.argmax()"]]}),
        refusal(queue, {**sinks, "seed": 1}),
        refusal(queue, {"program": [["own.py", 1, pages]]}),
        refusal(queue, wide().to_dict()),
    ]
    try:
        raw.create_sampler(queue, json.dumps({"program": "sinks"}))
    except PieError as error:
        found.append(str(error))
    ctx.append(list(range(5, 25)))
    await ctx.flush()
    ctx.hide(6, 8)
    try:
        await ctx.generate(attend=POLICIES["h2o"], max_tokens=3).collect_tokens()
    except ValueError as error:
        found.append(str(error))
    for options in ({"run_ahead": False}, {"choose": lambda tokens, chances: tokens[0]}):
        try:
            Context(model).generate(attend=POLICIES["sinks"], **options)
        except ValueError as error:
            found.append(str(error))
    return [*found, await a_look(model)]


async def main(args):
    mode, prompt = args[0], json.loads(args[1])
    model = Model.load()
    if mode == "refused":
        return json.dumps(await refusals(model))
    alone = {name: await text(model, prompt, attend) for name, attend in POLICIES.items()}
    drawing = Sampler(temperature=0.7, seed=3)
    drawn = [await text(model, prompt, POLICIES["quest"], drawing) for _ in range(2)]
    return json.dumps(
        {
            "alone": alone,
            "together": dict(
                zip(
                    POLICIES,
                    await gather(*(text(model, prompt, one) for one in POLICIES.values())),
                    strict=True,
                )
            ),
            "drawn": drawn,
            "flushed": await flushed(model, prompt),
            "forked": await forked(model, prompt),
            "parts": await read_in_parts(model, prompt),
            "steps": await read_by_steps(model, prompt),
        }
    )
