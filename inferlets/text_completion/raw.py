"""Continues a prompt, like main.py, with the server's contract alone: the listing of the Pie paper.

Run: pie-py run inferlets/text_completion/raw.py -- --prompt "The capital of" The steps are those of
Pie (SOSP'25), section 4.2. Pages and embeds are passed as spans, [start, count].
"""

import json
import random
from argparse import ArgumentParser

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


async def main(args: list[str]) -> str:
    """Sends the answer to the client in pieces, as it is generated."""
    parser = ArgumentParser("text_completion", description="Continues a prompt.")
    parser.add_argument("--prompt", required=True, help="what to continue")
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens to generate")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--seed", type=int, help="makes the choices repeatable")
    options = parser.parse_args(args)
    chance = random.Random(options.seed)

    model = available_models()[0]
    info = json.loads(model_info(model))
    queue = create_queue(model)

    prompt = tokenize(model, options.prompt)
    if info["bos_token"] is not None:
        prompt.insert(0, info["bos_token"])
    if not prompt:
        parser.error("--prompt is empty")
    limit = min(len(prompt) + options.max_tokens, info["max_position"])

    # Resource allocation
    prompt_emb = [alloc_emb(queue, len(prompt)), len(prompt)]
    gen_emb = [alloc_emb(queue, 1), 1]
    pages = -(-limit // info["page_size"])
    kv = [alloc_kvpage(queue, pages), pages]

    # Prefill
    embed_txt(queue, prompt, [0, len(prompt)], prompt_emb)
    forward(queue, [], prompt_emb, kv, gen_emb, [])

    # Decode
    tokens = prompt[-6:]  # the last words of the prompt, so that spaces come out right
    shown = detokenize(model, tokens)
    for position in range(len(prompt), limit):
        future = get_next_dist(queue, gen_emb[0], 256 if options.temperature > 0 else 1)
        await ready(future)
        candidates, probabilities = take_dist(future)
        if options.temperature > 0:
            weights = [p ** (1 / options.temperature) for p in probabilities]
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
