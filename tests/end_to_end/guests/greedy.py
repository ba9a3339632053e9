"""Continues token ids greedily through the SDK; the arguments are a JSON list of ids, a count, and
perhaps a model.
"""

import json

from inferlet import Context, Model, Sampler


async def main(args: list[str]) -> str:
    """Returns the new token ids as JSON."""
    tokens, count = json.loads(args[0]), int(args[1])
    context = Context(Model.load(*args[2:]))
    context.append(tokens)
    generator = context.generate(Sampler.argmax(), max_tokens=count, stop=[])
    return json.dumps(await generator.collect_tokens())
