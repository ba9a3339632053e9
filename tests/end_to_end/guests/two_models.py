"""Continues token ids with every model that is served, in turn."""

import json

from inferlet import Context, Model, Sampler, raw


async def main(args: list[str]) -> str:
    """Arguments: a JSON list of token ids, a count. Returns new token ids by model."""
    tokens, count = json.loads(args[0]), int(args[1])
    contexts = {name: Context(Model.load(name)) for name in raw.available_models()}
    generators = {}
    for name, context in contexts.items():
        context.append(tokens)
        generators[name] = context.generate(Sampler.argmax(), max_tokens=count, stop=[])
    texts = {name: await generator.collect_tokens() for name, generator in generators.items()}
    return json.dumps(texts)
