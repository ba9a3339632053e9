"""Generates with a monitor that refuses tokens with an `e`, and with one that does not."""

from asynclm.cml.dialect import Dialect
from asynclm.cml.grammars import Signature, block_grammar
from asynclm.cml.monitor import Monitor
from asynclm.cml.stream import TokenStream
from inferlet import Context, Model, Sampler


class WithoutE(Monitor):
    """Refuses what contains an e, besides markers out of place."""

    def rejects(self, token: int, *, trap: bool) -> bool:
        return "e" in self.dialect.codec.decode([token]) or super().rejects(token, trap=trap)


async def main(args: list[str]) -> list[str]:
    model = Model.load(args[0])
    dialect = Dialect(model.tokenizer)
    grammar = block_grammar(dialect, [Signature("f", {})])
    biases = dict.fromkeys(model.tokenizer.encode("the e is here"), 6.0)
    texts = []
    for kind in (Monitor, WithoutE):
        ctx = Context(model).fill("Once upon a time")
        monitor = kind(dialect, [])
        sampler = Sampler(temperature=1.0, seed=3, logit_bias=biases)
        stream, start = TokenStream(ctx, monitor, grammar, sampler), len(ctx)
        for _ in range(25):
            for token in await stream.next(trap=True):
                monitor.feed(token)
        texts.append(model.tokenizer.decode(ctx.tokens[start:]))
    return texts
