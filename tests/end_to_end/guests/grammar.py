"""Texts within grammars, in several ways; the first argument says which, the second is JSON."""

import asyncio
import json

from inferlet import Context, Grammar, Model, Sampler


def grammar_of(given: dict) -> Grammar:
    return Grammar(given["kind"], given["text"])


async def generate(given: dict) -> list:
    """Generates within each of some grammars, all at once."""
    model = Model.load()
    context = Context(model)
    context.append(given["tokens"])
    await context.flush()

    async def one(i: int, grammar: Grammar) -> dict:
        with context.fork() as fork:
            sampler = Sampler(temperature=given["temperature"], seed=given["seed"] + i)
            generator = fork.generate(
                sampler, max_tokens=given["count"], grammar=grammar, forced=given["forced"]
            )
            text = await generator.collect_text()
            return {"text": text, "complete": generator.is_complete, "tokens": len(fork.tokens)}

    jobs = [one(i, grammar_of(item)) for i, item in enumerate(given["grammars"])]
    return await asyncio.gather(*jobs)


async def own_choice(given: dict) -> dict:
    """The program samples itself, from the mask that it asks for."""
    model = Model.load()
    context = Context(model)
    context.append(given["tokens"])
    matcher = await grammar_of(given).matcher(model)
    generator = context.generate(Sampler.argmax(), max_tokens=given["count"])
    async for step in generator:
        if matcher.is_finished:
            break
        words = matcher.mask()
        distribution = await step.distribution(model.vocab_size)
        allowed = [t for t in distribution.tokens if words[t // 32] >> t % 32 & 1]
        assert all(matcher.allows(token) for token in allowed[:3])
        if generator.accept(allowed[:1]):
            matcher.advance(allowed[:1])
        else:
            assert matcher.is_accepting
    matcher.close()
    greedy = Context(model)
    greedy.append(given["tokens"])
    same = greedy.generate(
        Sampler(temperature=0), max_tokens=given["count"], grammar=grammar_of(given), forced=False
    )
    tokens = context.tokens[len(given["tokens"]) :]
    return {"own": tokens, "theirs": await same.collect_tokens()}


async def objects(given: dict) -> list:
    """Which of some texts may go on being an object, and whether they are whole ones."""
    model = Model.load()
    told = []
    for text in given["texts"]:
        matcher = await Grammar.json().matcher(model)
        tokens = model.tokenizer.encode(text)
        allowed = matcher.count_allowed(tokens) == len(tokens)
        assert matcher.allows(tokens[0]) == (matcher.count_allowed(tokens[:1]) == 1)
        told.append([allowed, allowed and matcher.advance(tokens)])
    return told


async def main(args: list[str]) -> str:
    """Runs what the first argument names."""
    modes = {"generate": generate, "own": own_choice, "objects": objects}
    return json.dumps(await modes[args[0]](json.loads(args[1])))
