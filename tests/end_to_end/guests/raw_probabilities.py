"""Returns the whole next-token distribution after some token ids, from the raw API alone."""

import json

from inferlet import raw


async def main(args: list[str]) -> str:
    """Arguments: a JSON list of token ids, a model. Returns the probabilities by token id."""
    tokens, model = json.loads(args[0]), args[1]
    info = json.loads(raw.model_info(model))
    q = raw.create_queue(model)
    n, size = len(tokens), info["page_size"]
    inputs, output = raw.alloc_emb(q, n), raw.alloc_emb(q, 1)
    pages = raw.alloc_kvpage(q, -(-n // size))
    raw.embed_txt(q, tokens, [0, n], [inputs, n])
    raw.forward(q, [], [inputs, n], [pages, -(-n // size)], [output, 1], [])
    future = raw.get_next_dist(q, output, info["vocab_size"])
    raw.wait([future])
    ids, probabilities = raw.take_dist(future)
    ordered = [0.0] * len(ids)
    for token, probability in zip(ids, probabilities, strict=True):
        ordered[token] = probability
    return json.dumps(ordered)
