"""Embeddings: a vector for each text, out of the model's hidden states.

It answers the HTTP gateway's `/v1/embeddings`: the request is JSON, `["prompt", tokens]` and a list
`["vector", tokens, float32 numbers in base64]` for each text are what it sends.
"""

import json
from array import array
from base64 import b64encode
from collections.abc import Iterator

from inferlet import Context, Model, PieError, gather, raw, session

PART = 256  # tokens of a text that run together
AT_ONCE = 512  # tokens of several texts
SMALL = 32  # a shorter text counts as this many, for each has a context


class Embedder:
    """What makes vectors of texts."""

    def __init__(self, model: str = "", adapter: str | None = None) -> None:
        self.model = Model.load(model or None)
        self.adapter = adapter
        self.pooling = self.model.info["pooling"]
        if self.pooling is None:
            raise SystemExit(f"unsupported: {self.model.name} gives embeddings in a way not served")

    def longest(self) -> int:
        """Tokens of the longest text."""
        context = Context(self.model)
        pool = json.loads(raw.pool_stats(context.queue))
        context.release()
        return min(self.model.max_position, pool["kv_pages"] * self.model.page_size)

    def tokens(self, text: str | list[int], most: int | None) -> list[int]:
        """The tokens of a text, whose end is cut off if there would be more than `most`."""
        if not isinstance(text, str):
            return text[:most]
        before, behind = self.model.info["around"]
        found = self.model.tokenizer.encode(text)
        room = None if most is None else max(0, most - len(before) - len(behind))
        return [*before, *found[:room], *behind]

    async def vector(self, tokens: list[int]) -> tuple[int, array[float]]:
        """The hidden state after the last token, or the mean of all."""
        context = Context(self.model, adapter=self.adapter, prefix_cache=False)
        sequence = context.sequence
        total: list[float] = []
        for at in range(0, len(tokens), PART):
            part = tokens[at : at + PART]
            others = len(part) - 1 if self.pooling == "mean" else 0
            more = [raw.alloc_emb(context.queue, others), others] if others else []
            try:
                sequence.forward(part, output=True, others=more)
                future = raw.get_hidden(context.queue, [*more, *sequence.embed])
            finally:
                if more:
                    raw.dealloc_emb(context.queue, more)
            found = await sequence.outcome(future, raw.take_hidden)
            if self.pooling == "mean":
                share = len(part) / len(tokens)
                before = total or [0.0] * len(found)
                total = [a + b * share for a, b in zip(before, found, strict=True)]
            else:
                total = found
        context.release()
        return len(tokens), array("f", total)


def groups(texts: list[list[int]]) -> Iterator[list[list[int]]]:
    """Texts that run at once."""
    group: list[list[int]] = []
    size = 0
    for tokens in texts:
        need = min(max(len(tokens), SMALL), PART)
        if size + need > AT_ONCE:
            yield group
            group, size = [], 0
        group.append(tokens)
        size += need
    yield group


async def main(args: list[str]) -> None:
    """Sends vectors of texts.

    Args:
        args: a request in JSON: "inputs", texts or lists of token ids; perhaps "model", "adapter",
            and "most", tokens of a text of which no more are read.
    """
    if len(args) != 1:
        raise SystemExit('one argument is wanted: a request in JSON, such as {"inputs": ["a"]}')
    asked = json.loads(args[0])
    embedder = Embedder(asked.get("model", ""), asked.get("adapter"))
    longest, name = embedder.longest(), embedder.model.name
    most = asked.get("most")
    if most is not None:
        most = min(most, longest) if most > 0 else longest
    texts = [embedder.tokens(text, most) for text in asked["inputs"]]
    for at, tokens in enumerate(texts):
        if len(tokens) > longest:
            raise SystemExit(
                f"invalid-argument: context-length: {name} takes {longest} tokens; text {at} has"
                f" {len(tokens)}"
            )
        if not tokens or max(tokens) >= embedder.model.vocab_size:
            raise SystemExit(
                f"invalid-argument: text {at} has no tokens, or one outside the vocabulary"
            )
    session.send(json.dumps(["prompt", sum(map(len, texts))]))
    for group in groups(texts):
        try:
            found = await gather(*map(embedder.vector, group))
        except PieError as error:  # the gateway makes its answer of it
            raise SystemExit(str(error)) from None
        for count, vector in found:
            data = b64encode(vector.tobytes()).decode()
            session.send(json.dumps(["vector", count, data]))
