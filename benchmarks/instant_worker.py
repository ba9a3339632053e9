"""A measuring device, no model: a worker that answers every plan at once, to measure the control
layer.

Run in the inference worker's place (`ServerConfig.worker_module`), over the same socket, with the
same messages. Every distribution and every sample says the same tokens; nothing is computed,
nothing stored.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zmq

from pie_py.config.child import exit_with_parent
from pie_py.config.model import ModelConfig
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    AdapterDone,
    Batch,
    BatchResult,
    Distributions,
    Hello,
    LoadAdapter,
    ModelDescription,
    NextDist,
    Plan,
    PlanResult,
    Sample,
    Samples,
    Stop,
)
from pie_py.wire.steps import steps_of

FIRST_TOKEN = 16  # away from the special tokens at the vocabulary's start
POOL = 1 << 17  # embeds, and pages: more than any run needs
TRAITS = ["allocate", "forward", "input-text", "tokenize", "output-text", "sample"]


def describe(config: ModelConfig) -> ModelDescription:
    """A checkpoint's description: sizes of its config.json, and limits as the real worker's."""
    folder = Path(config.source)
    facts = json.loads((folder / "config.json").read_text())
    return ModelDescription(
        name=config.name or folder.name,
        architecture=facts["architectures"][0],
        folder=str(folder),
        page_size=config.page_size,
        kv_pages=config.kv_pages or POOL,
        embeds=config.embeds or POOL,
        vocab_size=facts["vocab_size"],
        hidden_size=facts["hidden_size"],
        max_position=facts["max_position_embeddings"],
        max_batch_tokens=config.max_batch_tokens,
        max_batch_commands=config.max_batch_commands,
        stop_tokens=[facts["eos_token_id"]],
        most_steps=16,
        bos_token=facts["bos_token_id"],
        dtype=facts["dtype"],
        traits=TRAITS,
        layers=facts["num_hidden_layers"],
        heads=facts["num_attention_heads"],
    )


def answer(batch: Batch) -> BatchResult:
    """The result of a batch, whatever is in it."""
    match batch:
        case NextDist():
            return BatchResult(values=_distributions(batch.k.size, int(batch.k.max())))
        case Sample():
            return BatchResult(values=_samples(batch.embeds.size, int(batch.top.max(initial=0))))
    return BatchResult()


@functools.lru_cache(1024)
def _distributions(rows: int, k: int) -> Distributions:
    tokens = np.arange(FIRST_TOKEN, FIRST_TOKEN + k, dtype=np.int32)
    return Distributions(np.tile(tokens, (rows, 1)), np.full((rows, k), 1 / k, np.float32))


@functools.lru_cache(1024)
def _samples(rows: int, top: int) -> Samples:
    tokens = np.arange(FIRST_TOKEN, FIRST_TOKEN + top, dtype=np.int32)
    return Samples(
        tokens=np.full(rows, FIRST_TOKEN, np.int32),
        logprobs=np.zeros(rows, np.float32),
        top_tokens=np.tile(tokens, (rows, 1)),
        top_logprobs=np.zeros((rows, top), np.float32),
    )


def main(answer: Callable[[Batch], BatchResult] = answer) -> None:
    """Answers plans until `Stop`, batch by batch. Takes the real worker's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", required=True)
    parser.add_argument("--config", required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the real one: control decides
    exit_with_parent()
    models = [ModelConfig(**model) for model in json.loads(options.config)["models"]]
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(options.connect)
    described = [describe(model) for model in models]
    pages = {model.name: model.page_size for model in described}
    socket.send(encode(Hello(os.getpid(), "none", described)))
    while True:
        message = decode(socket.recv())
        if isinstance(message, Stop):
            break
        if isinstance(message, LoadAdapter):
            socket.send(encode(AdapterDone(message.model, message.slot, None)))
        if isinstance(message, Plan):
            size = pages[message.model]
            results = [answer(batch) for step in steps_of(message, size) for batch in step]
            socket.send(encode(PlanResult(message.id, message.model, results)))
    socket.close()
    context.term()


if __name__ == "__main__":
    main()
