"""vLLM's time per token, printed as JSON; run by the Python of an environment that has vLLM.

python vllm_loop.py CHECKPOINT PROMPT TOKENS BATCH...
"""

from __future__ import annotations

import json
import os
import random
import statistics
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
    """Prints milliseconds a token by batch size: generation less its first token."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    folder, prompt, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = LLM(
        folder,
        max_model_len=1024,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def seconds(batch: int, count: int) -> float:
        prompts = [
            {"prompt_token_ids": random.choices(range(16, 4000), k=prompt)} for _ in range(batch)
        ]
        options = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        start = time.perf_counter()
        engine.generate(prompts, options, use_tqdm=False)
        return time.perf_counter() - start

    figures = {}
    for batch in map(int, sys.argv[4:]):
        seconds(batch, 4)
        rounds = [(seconds(batch, tokens) - seconds(batch, 1)) / (tokens - 1) for _ in range(5)]
        figures[batch] = statistics.median(rounds) * 1e3
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
