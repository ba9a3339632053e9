"""The advice to trap handlers about the KV cache, over context lengths and expected waits."""

import json

from inferlet import Context, Model, offload, raw
from inferlet._pages import spans


async def main(args: list[str]) -> str:
    """Asks the server's policy; nothing waits. Takes and returns JSON."""
    given = json.loads(args[0])
    model = Model.load()
    costs = offload.costs(model)
    ctx = Context(model, add_bos=False, prefix_cache=False)
    rows = []
    for tokens in given["tokens"]:
        if tokens > model.max_position:
            break
        ctx.append([16] * (tokens - len(ctx)))
        await ctx.flush()
        pages = -(-tokens // model.page_size)
        size = pages * costs["page_bytes"]
        ways = (costs["swap_out"], costs["swap_in"])
        constant, linear, square = costs["prefill"]["fit"]
        rows.append(
            {
                "tokens": tokens,
                "swap": sum(way["seconds"] + size / way["bytes_per_second"] for way in ways)
                if all(ways)
                else None,
                "recompute": constant + linear * tokens + square * tokens**2,
                "choices": [advice(ctx, given["policy"], seconds) for seconds in given["seconds"]],
            }
        )
    return json.dumps(rows)


def advice(ctx: Context, policy: str, seconds: float) -> str:
    """The policy's choice for a wait that is expected to last as long."""
    wait = json.dumps({"policy": policy, "expected_ns": round(1e9 * seconds)})
    return str(
        json.loads(raw.advise(ctx.queue, spans(ctx.sequence.pages.addresses), wait))["choice"]
    )
