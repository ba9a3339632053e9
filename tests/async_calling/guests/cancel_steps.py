"""Writes calls, once undisturbed and once with every step given up, some before the token is chosen
and some after, and taken anew.
"""

import asyncio
from contextlib import suppress

from asynclm.cml.dialect import Dialect
from asynclm.cml.grammars import Signature, block_grammar
from asynclm.cml.monitor import Monitor
from asynclm.cml.stream import TokenStream
from inferlet import Context, Model, Sampler

TOKENS = 40
SECONDS = (0.0, 0.002, 0.01)  # a step takes a few milliseconds


async def main(args: list[str]) -> dict[str, object]:
    model = Model.load()
    dialect = Dialect(model.tokenizer)
    grammar = block_grammar(dialect, [Signature("fetch_weather", {"city": {}})])
    written, given_up = [], 0
    for disturbed in (False, True):
        ctx = Context(model)
        ctx.system("Calls: asynchronous.\nfetch_weather~40(city)")
        ctx.user("fetch weather with city Paris.").cue()
        start = len(ctx)
        monitor = Monitor(dialect, model.stop_tokens, reserved=frozenset({"a1"}))
        stream = TokenStream(ctx, monitor, grammar, Sampler(temperature=0.0))
        while len(ctx) < start + TOKENS:
            tokens = None
            for seconds in SECONDS if disturbed else ():
                step = asyncio.create_task(stream.next(trap=True))
                await asyncio.sleep(seconds)
                step.cancel()
                with suppress(asyncio.CancelledError):
                    tokens = await step
                    break
                given_up += 1
            if tokens is None:
                tokens = await stream.next(trap=True)
            if tokens[0] in monitor.stop_tokens:
                break
            for token in tokens:
                monitor.feed(token)
        written.append(model.tokenizer.decode(ctx.tokens[start:]))
    return {"undisturbed": written[0], "disturbed": written[1], "given_up": given_up}
