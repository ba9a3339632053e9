"""Embeddings: a vector for each text, out of the model's hidden states.

It answers the HTTP gateway's `/v1/embeddings`: the request is JSON, `["prompt", tokens]` and a list
`["piece", number, float32 numbers in base64, 0]` for each text are what it sends. An encoder reads
pairs of texts, too.
"""

import json
from array import array
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from inferlet import Context, Model, PieError, gather, raw, session

PART = 256  # tokens of a text that run together
AT_ONCE = 512  # tokens of several texts
SMALL = 32  # a shorter text counts as this many, for each has a context


def tokens_of(model: Model, text: str | list[int], most: int | None) -> list[int]:
    """The tokens of a text, whose end is cut off if there would be more than `most`."""
    if not isinstance(text, str):
        return text[:most]
    before, behind = model.info["around"]
    room = None if most is None else max(0, most - len(before) - len(behind))
    return [*before, *model.tokenizer.encode(text)[:room], *behind]


async def vector(model: Model, adapter: str | None, tokens: list[int]) -> list[float]:
    """The hidden state after the last token, or the mean of all."""
    context = Context(model, adapter=adapter, prefix_cache=False)
    sequence, total = context.sequence, [0.0]
    for at in range(0, len(tokens), PART):
        part = tokens[at : at + PART]
        others = len(part) - 1 if model.info["pooling"] == "mean" else 0
        more = [raw.alloc_emb(context.queue, others), others] if others else []
        try:
            sequence.forward(part, output=True, others=more)
            future = raw.get_hidden(context.queue, [*more, *sequence.embed])
        finally:
            if more:
                raw.dealloc_emb(context.queue, more)
        found = await sequence.outcome(future, raw.take_hidden)
        if model.info["pooling"] == "mean":
            share = len(part) / len(tokens)
            before = total if at else [0.0] * len(found)
            total = [a + b * share for a, b in zip(before, found, strict=True)]
        else:
            total = found
    context.release()
    return total


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


def send(at: int, numbers: list[float]) -> None:
    """Sends the vector of a text."""
    data = b64encode(array("f", numbers).tobytes()).decode()
    session.send(json.dumps(["piece", at, data, 0]))


async def encoded(model: Model, asked: dict[str, Any]) -> None:
    """Sends what an encoder makes of texts."""
    most = {} if asked.get("most") is None else {"most": asked["most"]}
    if most == {"most": -1}:
        most = {"most": model.max_position}
    try:
        rows = await model.encode(asked["inputs"], raw=bool(asked.get("raw")), **most)
    except PieError as error:  # the gateway makes its answer of it
        raise SystemExit(str(error)) from None
    session.send(json.dumps(["prompt", model.encoded_tokens]))
    for at, row in enumerate(rows):
        send(at, row)


async def main(args: list[str]) -> str:
    """Sends vectors of texts; returns how to use it if that is asked for.

    Args:
        args: a request in JSON: "inputs", texts or lists of token ids; perhaps "model", "adapter",
            "most", tokens of a text of which no more are read (-1: of the longest), and "raw", as
            of the contract's `encode`.
    """
    usage = """usage: embedding REQUEST

REQUEST is JSON: {"inputs": ["a text", ...], "model": NAME, "adapter": NAME, "most": TOKENS}
"""
    if args in (["-h"], ["--help"]):
        return usage
    if len(args) != 1:
        raise SystemExit(usage)
    asked = json.loads(args[0])
    model, adapter, most = Model.load(asked.get("model")), asked.get("adapter"), asked.get("most")
    if "encode" in model.traits:
        await encoded(model, asked)
        return ""
    if model.info["pooling"] is None:
        raise SystemExit(f"unsupported: {model.name} makes embeddings in a way that is not served")
    context = Context(model)
    pool = json.loads(raw.pool_stats(context.queue))
    longest = min(model.max_position, pool["kv_pages"] * model.page_size)
    most = most if most is None or 0 < most < longest else longest
    texts = [tokens_of(model, text, most) for text in asked["inputs"]]
    for at, tokens in enumerate(texts):
        if len(tokens) > longest:
            raise SystemExit(
                f"invalid-argument: context-length: {model.name} takes {longest} tokens;"
                f" text {at} has {len(tokens)}"
            )
        if not tokens or max(tokens) >= model.vocab_size:
            why = f"has a token beyond {model.vocab_size - 1}" if tokens else "is empty"
            raise SystemExit(f"invalid-argument: text {at} {why}")
    session.send(json.dumps(["prompt", sum(map(len, texts))]))
    at = 0
    for group in groups(texts):
        try:
            found = await gather(*(vector(model, adapter, tokens) for tokens in group))
        except PieError as error:  # the gateway makes its answer of it
            raise SystemExit(str(error)) from None
        for numbers in found:
            send(at, numbers)
            at += 1
    return ""
