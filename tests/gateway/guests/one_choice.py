"""Texts of samplers, each read whole, by tokens, and step by step."""

import json
from typing import Any

from inferlet import Context, Model, Sampler


async def main(args: list[str]) -> str:
    told = json.loads(args[0])
    return json.dumps([await texts(told["prompt"], one) for one in told["samplers"]])


async def texts(prompt: list[int], parameters: dict[str, Any]) -> list[str]:
    model, sampler = Model.load(), Sampler(**parameters)
    options = {"max_tokens": 24, "stop": parameters.get("end_tokens", [])}
    whole = await Context(model).append(prompt).generate(sampler, **options).collect_text()
    tokens = await Context(model).append(prompt).generate(sampler, **options).collect_tokens()
    steps = []
    async for step in Context(model).append(prompt).generate(sampler, **options):
        steps += (await step.execute()).tokens
    return [whole, *map(model.tokenizer.decode, (tokens, steps))]
