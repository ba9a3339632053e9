"""What the trap handler does with the KV cache, over lengths of contexts and expected waits."""

import json

from inferlet import Model, offload
from inferlet.cml.traps import Pause, cheapest, recompute_seconds, swap_seconds


async def main(args: list[str]) -> str:
    """Asks the policy; nothing waits. Takes and returns JSON."""
    given = json.loads(args[0])
    model = Model.load()
    costs = offload.costs(model)
    rows = []
    for tokens in given["tokens"]:
        if tokens > model.max_position:
            break
        pages = -(-tokens // model.page_size)
        pauses = [Pause(tokens, pages, seconds, costs) for seconds in given["seconds"]]
        rows.append(
            {
                "tokens": tokens,
                "swap": swap_seconds(pauses[0]),
                "recompute": recompute_seconds(pauses[0]),
                "choices": [str(cheapest(pause)) for pause in pauses],
            }
        )
    return json.dumps(rows)
