"""Texts of samplers, each read whole, and then by tokens, in a stream, and by steps at once."""

import json
from typing import Any

from inferlet import Context, Model, Sampler, gather


async def main(args: list[str]) -> str:
    told = json.loads(args[0])
    return json.dumps([await texts(told["prompt"], one) for one in told["samplers"]])


async def texts(prompt: list[int], parameters: dict[str, Any]) -> list[str]:
    model, sampler = Model.load(), Sampler(**parameters)
    options = {"max_tokens": 12, "stop": parameters.get("end_tokens", [])}

    def begun() -> Any:
        return Context(model).append(prompt).generate(sampler, **options)

    async def streamed() -> list[int]:
        return [token async for token in begun().stream_tokens()]

    async def stepped(looks: bool) -> list[int]:
        tokens: list[int] = []
        async for step in begun():
            if looks and len(tokens) % 3 == 1:
                await step.distribution(5)
            tokens += (await step.execute()).tokens
        return tokens

    whole = await begun().collect_text()
    ways = begun().collect_tokens(), streamed(), stepped(looks=False), stepped(looks=True)
    return [whole, *map(model.tokenizer.decode, await gather(*ways))]
