"""Generations that read a part of their context, alone and beside others; and what is refused."""

import json
from typing import Any

from inferlet import (
    Context,
    Grammar,
    Model,
    PieError,
    Sampler,
    attention,
    device,
    gather,
    layers,
    raw,
    samplers,
)

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
STEPPED = ("whole", "quest", "h2o", "snapkv", "sinks")
WARM = Sampler(temperature=0.8)


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


async def ways(model, prompt, attend):
    """The same tokens, read in ways between which the server can't go on by itself."""

    def begin(sampler=None, **options):
        ctx = Context(model)
        ctx.append(prompt)
        options = {"max_tokens": 12, "stop": [], "seed": 5, "attend": attend, **options}
        return ctx.generate(sampler or WARM, **options)

    found = {"run": await begin().collect_tokens()}
    found["steps"] = await begin(run_ahead=False).collect_tokens()
    options = {"max_tokens": 12, "stop": [], "attend": attend}
    more: Any
    for name, more in ("likeliest", {}), ("chosen", {"choose": lambda tokens, _: tokens[0]}):
        ctx = Context(model)
        ctx.append(prompt)
        found[name] = await ctx.generate(**options, **more).collect_tokens()
    for name, sampler in ("logprobs", Sampler(temperature=0.8, logprobs=2)), ("looks", WARM):
        found[name] = []
        async for step in (generator := begin(sampler)):
            if name == "looks" and generator.tokens_generated % 3 != 1:
                await step.distribution()
            found[name] += (await step.execute()).tokens
    found["left"], generator = [], begin()
    for count in (1, 4, 2, 5):
        stream = generator.stream_tokens()
        found["left"] += [await anext(stream) for _ in range(count)]
        await stream.aclose()
    return found


async def appended(model, prompt, *, flushes):
    """The likeliest tokens behind one that the program appends after a look, with and without."""
    ctx = Context(model)
    ctx.append(prompt)
    generator, found = ctx.generate(stop=[], attend=POLICIES["sinks"]), []
    await (await anext(generator)).execute()
    step = await anext(generator)
    found.append((await step.distribution(5)).tokens)
    ctx.append([7])
    if flushes:
        await ctx.flush()
    found.append((await step.distribution(5)).tokens)
    return found


@device.program
def dictated(logits, state):
    """The tokens of a list, and then the likeliest that may follow."""
    chosen = logits.scatter_add(state.banned, state.minus).argmax()
    return device.where(device.step() < state.count, state.tokens[device.step()], chosen)


async def held(model, prompt, attend, pattern):
    """Tokens within a grammar, by the server and by hand: by hand each token is that of a run of
    its own, of a program that has the mask which the tokens before lead to.
    """
    grammar, size = Grammar.regex(pattern), model.vocab_size
    ctx = Context(model)
    ctx.append(prompt)
    generator = ctx.generate(max_tokens=8, stop=[], attend=attend, grammar=grammar)
    found = await generator.collect_tokens()
    tokens: list[int] = []
    matcher = await grammar.matcher(model)
    while len(tokens) < 8 and not matcher.is_finished:
        mask = matcher.mask()
        banned = [token for token in range(size) if not mask[token // 32] >> token % 32 & 1]
        program = dictated(
            tokens=[*tokens, 0], count=len(tokens), banned=banned, minus=[-1e30] * len(banned)
        )
        ctx = Context(model)
        ctx.append(prompt)
        again = ctx.generate(program, max_tokens=len(tokens) + 2, stop=[], attend=attend)
        tokens.append((await again.collect_tokens())[len(tokens)])
        matcher.advance(tokens[-1:])
    return found, tokens, generator.is_complete


async def accepted(model):
    ctx = Context(model)
    ctx.append([5, 6, 7])
    generator = ctx.generate(max_tokens=3, attend=POLICIES["sinks"])
    try:
        async for step in generator:
            await step.distribution()
            generator.accept([9])
    except ValueError as error:
        return str(error)


async def counted(model):
    """A sampler that counts tokens, some of which are undone."""
    ctx = Context(model)
    ctx.append([5, 6, 7])
    generator = ctx.generate(
        Sampler(repetition_penalty=1.5), max_tokens=20, stop=[], attend=POLICIES["sinks"]
    )
    try:
        for _ in range(2):
            async for _ in generator.stream_tokens():
                break
    except RuntimeError as error:
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

    found = [refusal(queue, {**sinks, "seed": 1}), refusal(queue, wide().to_dict())]
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
    for rule, within in (
        (None, blind(three=[0.0] * 3)),
        (samplers.dola(temperature=0.0), layers.probe([[0.0] * 64], at=[0])),
        (samplers.dola(temperature=0.0), None),
        (narrow(x=[0.0] * 3), None),
    ):
        try:
            await fresh(model).generate(rule, layers=within, max_tokens=2).collect_tokens()
        except PieError as error:
            found.append(str(error))
    return [*found, await accepted(model), await counted(model)]


def fresh(model):
    ctx = Context(model)
    ctx.append([5, 6, 7])
    return ctx


@device.layers(at=[0])
def blind(residual, state):
    return residual * device.lens(state.three).max()


@device.program
def narrow(logits, state):
    return (logits + device.lens(state.x)).argmax()


@device.program
def by_score(logits, state, layers):
    """The likeliest token, or the least likely one where the sum of the residual is above 0."""
    return device.where(layers.scores[0] > 0.0, (-logits).argmax(), logits.argmax())


async def contrasts(model, prompt):
    """DoLa alone, side by side and behind a flush; a sampler that looks at a probe; and a rule of
    the program's own beside a program in the layers.
    """

    def begun():
        ctx = Context(model)
        ctx.append(prompt)
        return ctx

    early = layers.early(at=[0, 1], hidden=model.info["width"])
    greedy = samplers.dola(temperature=0.0)

    async def of(ctx, rule, within, **more):
        return await ctx.generate(
            rule, layers=within, max_tokens=TOKENS, stop=[], **more
        ).collect_tokens()

    flushed = begun()
    await flushed.flush()
    lines = [[1.0] * 64]
    scored = [layers.probe(lines, at=[0], prompt=each) for each in (True, "last")]
    steered = layers.steer([((7 * i) % 11 - 5) / 20 for i in range(64)], at=[1])
    chosen = [of(begun(), None, steered, choose=lambda tokens, _: tokens[1]) for _ in range(2)]
    return {
        "dola": await gather(*[of(ctx, greedy, early) for ctx in (begun(), begun(), flushed)]),
        "scored": await gather(*[of(begun(), by_score(), each) for each in scored]),
        "chosen": await gather(*chosen),
    }


async def in_layers(model, prompt):
    """Steered texts alone, beside others, after a flush, of a fork and by steps; and what is kept
    of layers.
    """
    vector = [((7 * i) % 11 - 5) / 20 for i in range(64)]
    steered = layers.steer(vector, at=[1])

    async def tokens_of(ctx, attend, **more):
        return await ctx.generate(
            max_tokens=TOKENS, stop=[], layers=attend, **more
        ).collect_tokens()

    def begun(tokens=prompt):
        ctx = Context(model)
        ctx.append(tokens)
        return ctx

    unseen = [[*prompt[::-1][:-1], 9], prompt[::-1]]  # of which the cache has nothing
    flushed = begun()
    await flushed.flush()
    fork = flushed.fork()
    stepped = []
    async for step in begun().generate(max_tokens=TOKENS, stop=[], layers=steered):
        stepped += (await step.execute()).tokens
    lens = begun().generate(max_tokens=TOKENS, stop=[], layers=layers.logit_lens(at=[-1]))
    kept = await lens.collect_tokens()
    probe = begun().generate(
        max_tokens=TOKENS, stop=[], layers=layers.probe([[1.0] * 64], at=[0], prompt=True)
    )
    probed = await probe.collect_tokens()
    return {
        "steered": await gather(
            tokens_of(begun(), steered), tokens_of(begun(), None), tokens_of(begun(), steered)
        ),
        "flushed": [await tokens_of(flushed, steered), await tokens_of(fork, steered)],
        "stepped": stepped,
        "plain": [kept, probed],
        "unseen": [
            [await tokens_of(begun(unseen[1]), attend) for attend in (steered, None, steered)],
            [await tokens_of(begun(unseen[0]), attend) for attend in (None, steered, None)],
        ],
        "lens": await lens.state(),
        "sums": (await probe.state())["sums"],
    }


async def main(args):
    mode, prompt = args[0], json.loads(args[1])
    model = Model.load()
    if mode == "contrasts":
        return json.dumps(await contrasts(model, prompt))
    if mode == "layers":
        return json.dumps(await in_layers(model, prompt))
    if mode == "refused":
        return json.dumps(await refusals(model))
    if mode == "ways":
        texts = [await ways(model, prompt, POLICIES[name]) for name in STEPPED]
        looks = [await appended(model, prompt, flushes=flushes) for flushes in (False, True)]
        return json.dumps({"texts": texts, "appended": looks})
    if mode == "grammar":
        patterns = [(name, "[a-m ]+") for name in ("quest", "h2o", "snapkv")]
        patterns.append(("h2o", "(yes|no), [0-9]+ times"))
        return json.dumps([await held(model, prompt, POLICIES[n], p) for n, p in patterns])
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
        }
    )
