"""Tokens chosen by the server, in several ways; the first argument says which, the second is
JSON.
"""

import json

from inferlet import Context, Model, Sampler, raw
from inferlet._pages import spans


async def generate(given: dict) -> dict:
    """Generates with the parameters given, after a prompt filled in two parts."""
    context = Context(Model.load())
    tokens = given["tokens"]
    split = given.get("split", 0)
    if split:
        context.append(tokens[:split])
        await context.flush()
    context.append(tokens[split:])
    sampler = Sampler(**given.get("sampler", {}))
    generator = context.generate(sampler, max_tokens=given["count"], stop=[])
    if given.get("scored"):
        tokens, logprobs = await generator.collect_tokens(logprobs=True)
        return {"tokens": tokens, "logprobs": logprobs}
    out: list[int] = []
    chances: list[float | None] = []
    tops = []
    async for step in generator:
        output = await step.execute()
        out += output.tokens
        chances.append(output.logprob)
        top = output.distribution()
        tops.append(list(zip(top.tokens, top.probabilities, strict=True)))
    return {"tokens": out, "logprobs": chances, "tops": tops}


async def ahead(given: dict) -> dict:
    """Queues all steps before the first token is known, and then drops the last ones."""
    tokens, count, wasted = given["tokens"], given["count"], given["wasted"]
    model = raw.available_models()[0]
    size = json.loads(raw.model_info(model))["page_size"]
    q = raw.create_queue(model)
    n = len(tokens)
    need = -(-(n + count) // size)
    first = raw.alloc_kvpage(q, need)
    pages = list(range(first, first + need))
    inputs, embed = raw.alloc_emb(q, n), raw.alloc_emb(q, 1)
    sampler = raw.create_sampler(q, Sampler(**given["sampler"]).to_json())
    raw.embed_txt(q, tokens, [0, n], [inputs, n])
    raw.forward(q, [], [inputs, n], spans(pages), [embed, 1], [])
    futures = [raw.sample(q, embed, sampler)]
    for i in range(count - 1):
        raw.embed_sampled(q, sampler, n + i, embed)
        raw.forward(q, spans(pages), [embed, 1], spans(pages), [embed, 1], [])
        futures.append(raw.sample(q, embed, sampler))
    chosen = []
    for future in futures:
        raw.wait([future])
        chosen.append(raw.take_sample(future)[0])
    # The last token was never run. Drop some more, and run others in their place.
    kept = n + count - 1 - wasted
    used = [min(size, max(0, kept - i * size)) for i in range(need)]
    raw.truncate_kvpage(q, spans(pages), used)
    assert raw.kvpage_used(q, spans(pages)) == used
    again = []
    for position in range(kept, kept + wasted):
        token = (chosen[position - n] + given["shift"]) % 300
        raw.embed_txt(q, [token], [position, 1], [embed, 1])
        raw.forward(q, spans(pages), [embed, 1], spans(pages), [embed, 1], [])
        future = raw.get_next_dist(q, embed, 1)
        raw.wait([future])
        again += raw.take_dist(future)[0]
    return {"tokens": chosen, "again": again}


async def main(args: list[str]) -> str:
    """Runs what the first argument names."""
    given = json.loads(args[1])
    return json.dumps(await {"generate": generate, "ahead": ahead}[args[0]](given))
