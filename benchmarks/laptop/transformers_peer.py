"""transformers as a peer (`benchmarks.peers`), on the weights of a GGUF, which it widens.

python transformers_peer.py FILE.gguf --dtype DTYPE [--first TOKENS]

A request has `prompts` of one length and how many `tokens` to generate, or windows to `score`; and
perhaps `threads`. Answers have times, tokens and, where `steps` is false, log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, __version__  # noqa: E402


def generate(model: Any, prompts: list[list[int]], tokens: int, detailed: bool) -> dict[str, Any]:
    """Continues prompts of one length greedily, whatever the tokens are."""
    made, logprobs = [], []
    begin, cpu = time.perf_counter(), time.process_time()
    out = model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
    first = time.perf_counter()
    for step in range(tokens):
        rows = out.logits[:, -1]
        chosen = rows.argmax(-1, keepdim=True)
        made.append(chosen)
        if detailed:
            logprobs.append(rows.float().log_softmax(-1).gather(1, chosen))
        if step < tokens - 1:
            out = model(chosen, past_key_values=out.past_key_values, use_cache=True)
    end = time.perf_counter()
    return {
        "seconds": end - begin,
        "cpu": time.process_time() - cpu,
        "ms_a_token": (end - first) / max(1, tokens - 1) * 1e3,
        "tokens": torch.cat(made, 1).tolist(),
        "logprobs": torch.cat(logprobs, 1).tolist() if detailed else [],
    }


def score(model: Any, window: list[int]) -> list[float]:
    """Log-probability of each token behind the first."""
    ids = torch.tensor([window])
    rows = model(ids).logits[0, :-1].float().log_softmax(-1)
    found: list[float] = rows.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return found


def answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    torch.set_num_threads(request.get("threads") or os.cpu_count() or 1)
    if "score" in request:
        return {"logprobs": [score(model, window) for window in request["score"]]}
    return generate(model, request["prompts"], request["tokens"], not request["steps"])


@torch.inference_mode()
def main() -> None:
    """Answers requests on standard input until its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--first", type=json.loads, help="prints the token behind these, and ends")
    options = parser.parse_args()
    model: Any = AutoModelForCausalLM.from_pretrained(
        options.file.parent, gguf_file=options.file.name, dtype=getattr(torch, options.dtype)
    )
    model.eval()
    if options.first:
        print(generate(model, [options.first], 1, False)["tokens"], file=ANSWERS, flush=True)
        return
    ready = f"transformers {__version__}, torch {torch.__version__}, {options.dtype}"
    print(json.dumps({"ready": ready}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line))), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
