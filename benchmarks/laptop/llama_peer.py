"""llama.cpp as a peer (`benchmarks.peers`): run by the Python of an environment that has llama_cpp.

python llama_peer.py FILE.gguf [--context N] [--sequences N] [--plain] [--first TEXT]

Requests are those of `transformers_peer.py`, and `texts`, of which it answers the `tokens`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer

import llama_cpp as lib  # type: ignore[import-not-found]  # noqa: E402
import numpy as np  # noqa: E402

BATCH = 2048


class Llama:
    """A model, and a context for one sequence and one for several, without Python's wrapper."""

    def __init__(self, file: str, context: int, sequences: int, plain: bool) -> None:
        model = lib.llama_model_default_params()
        model.use_extra_bufts = not plain
        self._model = lib.llama_model_load_from_file(file.encode(), model)
        self._vocabulary = lib.llama_model_get_vocab(self._model)
        self.size = lib.llama_vocab_n_tokens(self._vocabulary)
        self._contexts = [self._made(context, most) for most in sorted({1, sequences})]
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self.begin(1)

    def _made(self, context: int, sequences: int) -> Any:
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_seq_max = context, BATCH, sequences
        return lib.llama_init_from_model(self._model, settings)

    def begin(self, sequences: int) -> None:
        """Begins with so many, whose caches are empty."""
        self._context = self._contexts[0 if sequences == 1 else -1]
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)

    def threads(self, count: int) -> None:
        """Computes with so many from now on."""
        for context in self._contexts:
            lib.llama_set_n_threads(context, count, count)

    def tokens(self, text: str) -> list[int]:
        """Of a text, special ones recognised, none added."""
        data = text.encode()
        room = (lib.llama_token * (len(data) + 8))()
        count = lib.llama_tokenize(self._vocabulary, data, len(data), room, len(room), False, True)
        return list(room[:count])

    def text(self, token: int) -> str:
        """Of one token."""
        room = bytes(256)
        count = lib.llama_token_to_piece(self._vocabulary, token, room, len(room), 0, True)
        return room[:count].decode(errors="replace")

    def forward(self, items: list[tuple[int, int, int, bool]]) -> list[Any]:
        """Logits `[vocabulary]` of those (token, position, sequence, wanted) that want them."""
        found = []
        for begin in range(0, len(items), BATCH):
            part = items[begin : begin + BATCH]
            self._batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                self._batch.token[i], self._batch.pos[i] = token, position
                self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, sequence
                self._batch.logits[i] = wanted
            assert lib.llama_decode(self._context, self._batch) == 0
            for i, item in enumerate(part):
                if item[3]:
                    pointer = lib.llama_get_logits_ith(self._context, i)
                    found.append(np.ctypeslib.as_array(pointer, (self.size,)).copy())
        return found


def _logprob(logits: Any, token: int) -> float:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return float(wide[token] - np.log(np.exp(wide).sum()))


def generate(llama: Llama, prompts: list[list[int]], tokens: int, detailed: bool) -> dict[str, Any]:
    """Continues prompts of one length greedily, whatever the tokens are."""
    llama.begin(len(prompts))
    length, made, logprobs = len(prompts[0]), [], []
    begin, cpu = time.perf_counter(), time.process_time()
    logits = llama.forward(
        [(t, at, s, at == length - 1) for s, p in enumerate(prompts) for at, t in enumerate(p)]
    )
    first = time.perf_counter()
    for step in range(tokens):
        chosen = [int(row.argmax()) for row in logits]
        made.append(chosen)
        if detailed:
            logprobs.append([_logprob(row, t) for row, t in zip(logits, chosen, strict=True)])
        if step < tokens - 1:
            items = [(token, length + step, s, True) for s, token in enumerate(chosen)]
            logits = llama.forward(items)
    end = time.perf_counter()
    return {
        "seconds": end - begin,
        "cpu": time.process_time() - cpu,
        "ms_a_token": (end - first) / max(1, tokens - 1) * 1e3,
        "tokens": [list(row) for row in zip(*made, strict=True)],
        "logprobs": [list(row) for row in zip(*logprobs, strict=True)],
    }


def score(llama: Llama, window: list[int]) -> list[float]:
    """Log-probability of each token behind the first."""
    llama.begin(1)
    rows = llama.forward([(token, at, 0, True) for at, token in enumerate(window[:-1])])
    return [_logprob(row, token) for row, token in zip(rows, window[1:], strict=True)]


def answer(llama: Llama, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    llama.threads(request.get("threads") or os.cpu_count() or 1)
    if "texts" in request:
        return {"tokens": [llama.tokens(text) for text in request["texts"]]}
    if "score" in request:
        return {"logprobs": [score(llama, window) for window in request["score"]]}
    return generate(llama, request["prompts"], request["tokens"], not request["steps"])


def main() -> None:
    """Answers requests on standard input until its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without repacked weights")
    parser.add_argument("--first", help="prints the first tokens behind this text, and ends")
    options = parser.parse_args()
    llama = Llama(options.file, options.context, options.sequences, options.plain)
    if options.first:
        [made] = generate(llama, [llama.tokens(options.first)], 2, detailed=False)["tokens"]
        print("".join(map(llama.text, made)), file=ANSWERS, flush=True)
        return
    built = lib.llama_print_system_info().decode().strip()
    ready = f"llama-cpp-python {lib.__version__}; {built}"
    print(json.dumps({"ready": ready}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llama, json.loads(line))), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
