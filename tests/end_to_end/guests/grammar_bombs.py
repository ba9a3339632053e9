"""A neighbour that goes on while grammars of others are compiled and walked; the argument is
JSON.
"""

import asyncio
import json

from inferlet import Context, Grammar, Model, PieError, Sampler


async def main(args: list[str]) -> str:
    """Generates within every grammar given, at once; each outcome is a text or an error's code."""
    model = Model.load()

    async def one(kind: str, text: str) -> str:
        context = Context(model)
        context.append([5, 6, 7])
        generator = context.generate(Sampler(seed=1), max_tokens=24, grammar=Grammar(kind, text))
        try:
            return "text:" + await generator.collect_text()
        except PieError as error:
            return error.code

    return json.dumps(await asyncio.gather(*[one(*pair) for pair in json.loads(args[0])]))
