"""A model that is drawn towards pieces of markers: what it writes has to be CML all the same.

Identifiers that it likes are taken already.
"""

import random

from asynclm.cml.dialect import Dialect, Marker
from asynclm.cml.grammars import Signature, block_grammar
from asynclm.cml.monitor import Monitor
from asynclm.cml.parser import CallBlock, TextPart
from asynclm.cml.stream import TokenStream
from inferlet import Context, Model, Sampler

TAKEN = frozenset({"a1", "a", "b", "c"})


async def main(args: list[str]) -> dict[str, object]:
    model, seed = Model.load(), int(args[0])
    dialect = Dialect(model.tokenizer)
    pieces = random.Random(seed).choices([*Marker, " ä", "x"], k=3)
    biases = {t: 9.0 if seed else 0.0 for piece in pieces for t in model.tokenizer.encode(piece)}
    sampler = Sampler(temperature=1.0 if seed else 0.0, seed=seed, logit_bias=biases)
    monitor = Monitor(dialect, model.stop_tokens, reserved=TAKEN)
    grammar = block_grammar(dialect, [Signature("fetch_weather", {"city": {}})])
    ctx = Context(model)
    ctx.system("Calls: asynchronous.\nfetch_weather~40(city)")
    ctx.user("fetch weather with city Paris.").cue()
    start, blocks = len(ctx), []
    stream = TokenStream(ctx, monitor, grammar, sampler)
    for _ in range(80):
        tokens = await stream.next(trap=True)
        if tokens[0] in monitor.stop_tokens:
            break
        for token in tokens:
            blocks += monitor.feed(token)
    if not monitor.critical:
        blocks += monitor.end_turn()
    return {
        "written": model.tokenizer.decode(ctx.tokens[start:]),
        "calls": [(b.identifier, b.problem) for b in blocks if isinstance(b, CallBlock)],
        "text": "".join(block.text for block in blocks if isinstance(block, TextPart)),
    }
