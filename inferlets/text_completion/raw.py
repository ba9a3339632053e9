"""Continues a prompt, like main.py, with the server's contract alone: the listing of the Pie paper.

Run: pie-py run inferlets/text_completion/raw.py -- --prompt "The capital of" The steps are those of
Pie (SOSP'25), section 4.2. Pages and embeds are passed as spans, [start, count].
"""

import json
import random

from inferlet import ready
from inferlet.raw import (
    alloc_emb,
    alloc_kvpage,
    available_models,
    create_queue,
    dealloc_emb,
    dealloc_kvpage,
    detokenize,
    embed_txt,
    forward,
    get_next_dist,
    model_info,
    send,
    take_dist,
    tokenize,
)


async def main(
    prompt: str, max_tokens: int = 64, temperature: float = 0.0, seed: int | None = None
) -> str:
    """Sends the answer to the client in pieces, as it is generated.

    Args:
        prompt: what to continue.
        max_tokens: most tokens to generate.
        temperature: 0 is greedy.
        seed: makes the choices repeatable.
    """
    chance = random.Random(seed)

    model = available_models()[0]
    info = json.loads(model_info(model))
    queue = create_queue(model)

    filled = tokenize(model, prompt)
    if info["bos_token"] is not None:
        filled.insert(0, info["bos_token"])
    if not filled:
        raise SystemExit("usage: --prompt is empty")
    limit = min(len(filled) + max_tokens, info["max_position"])

    # Resource allocation
    prompt_emb = [alloc_emb(queue, len(filled)), len(filled)]
    gen_emb = [alloc_emb(queue, 1), 1]
    pages = -(-limit // info["page_size"])
    kv = [alloc_kvpage(queue, pages), pages]

    # Prefill
    embed_txt(queue, filled, [0, len(filled)], prompt_emb)
    forward(queue, [], prompt_emb, kv, gen_emb, [])

    # Decode
    tokens = filled[-6:]  # the last words of the prompt, so that spaces come out right
    shown = detokenize(model, tokens)
    for position in range(len(filled), limit):
        future = get_next_dist(queue, gen_emb[0], 256 if temperature > 0 else 1)
        await ready(future)
        candidates, probabilities = take_dist(future)
        if temperature > 0:
            weights = [p ** (1 / temperature) for p in probabilities]
            token = chance.choices(candidates, weights)[0]
        else:
            token = candidates[0]
        if token in info["stop_tokens"]:
            break
        tokens.append(token)
        text = detokenize(model, tokens)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # else the token ends within a character
            send(text[len(shown) :])
            shown = text
        embed_txt(queue, [token], [position, 1], gen_emb)
        forward(queue, kv, gen_emb, kv, gen_emb, [])
    if rest := detokenize(model, tokens)[len(shown) :]:  # a character that was never completed
        send(rest)

    # Resource cleanup
    dealloc_emb(queue, prompt_emb + gen_emb)
    dealloc_kvpage(queue, kv)
    return ""
