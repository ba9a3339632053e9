"""vLLM as a peer (`benchmarks.peers`): run by the Python of an environment that has vLLM.

python vllm_loop.py CHECKPOINT [--max-tokens N] [--prefix-caching] [--compile]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="2",
    HF_HUB_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)


def main() -> None:
    """Answers requests on standard input until its end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
    from vllm import __version__ as version

    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--max-tokens", type=int, default=1024, help="prompt and new ones together")
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    engine = LLM(
        options.checkpoint,
        max_model_len=options.max_tokens,
        enforce_eager=not options.compile,
        enable_prefix_caching=options.prefix_caching,
        disable_log_stats=True,
    )

    def seconds(prompts: list[list[int]], tokens: int) -> float:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        start = time.perf_counter()
        engine.generate(given, sampling, use_tqdm=False)
        return time.perf_counter() - start

    print(json.dumps({"ready": f"vLLM {version}"}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompts, tokens = request["prompts"], request["tokens"]
        # What is not used for a second may have left the memory; a token alone is no prefix to
        # find.
        seconds([prompts[0][-1:]], 4)
        first = seconds(prompts, 1) if request["steps"] else 0.0
        whole = seconds(prompts, tokens)
        answer = {
            "seconds": whole,
            "ms_a_token": (whole - first) / (tokens - 1) * 1e3 if request["steps"] else None,
        }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
