"""A worker without a model: it answers what a script says, in the inference worker's place.

Slots and embeds hold tokens instead of keys, values and hidden states, so a sample knows the text
that it follows, however the program has put it together: forks, masks, swaps, saved pages.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from tokenizers import Tokenizer

from pie_py.config.child import exit_with_parent
from pie_py.config.model import ModelConfig
from pie_py.testing.script import SCRIPT, ScriptFile, next_token
from pie_py.wire.device_programs import packed_states
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    Batch,
    BatchResult,
    Clear,
    CopyEmbed,
    CopyKv,
    Distributions,
    EmbedSampled,
    EmbedText,
    Forward,
    Hello,
    Hidden,
    MaskKv,
    ModelDescription,
    NextDist,
    Plan,
    PlanResult,
    ReadHidden,
    ReadState,
    Sample,
    Samples,
    ShiftKv,
    Stop,
    SwapIn,
    SwapOut,
)
from pie_py.wire.steps import steps_of

TRAITS = ["allocate", "forward", "input-text", "tokenize", "output-text", "sample", "grammar"]
KV_PAGES, EMBEDS, HOST_PAGES = 4096, 65536, 256
SURE = 0.9  # probability of the token that the script says

Slot = tuple[int, int, bool]  # token, position, whether it is masked
EMPTY: Slot = (0, -1, False)


class Replayer:
    """Pools of one model, and its commands."""

    def __init__(self, model: ModelDescription, folder: Path) -> None:
        self.model = model
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._script = ScriptFile(folder / SCRIPT)
        self._slots = [EMPTY] * (model.kv_pages * model.page_size)
        self._hosts = [EMPTY] * (model.host_pages * model.page_size)
        self._embeds: list[tuple[tuple[int, ...], int]] = [((), -1)] * model.embeds
        self._chosen = [0] * model.samplers
        self._encoded = lru_cache(256)(
            lambda text: tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
        )

    def run(self, plan: Plan) -> PlanResult:
        """Runs all batches of a plan."""
        steps = steps_of(plan, self.model.page_size)
        results = [self._batch(batch) for step in steps for batch in step]
        return PlanResult(plan.id, plan.model, results)

    def _batch(self, batch: Batch) -> BatchResult:
        match batch:
            case EmbedText():
                for token, position, embed in _rows(batch.tokens, batch.positions, batch.embeds):
                    self._embeds[embed] = ((token,), position)
            case EmbedSampled():
                for slot, position, embed in _rows(batch.samplers, batch.positions, batch.embeds):
                    self._embeds[embed] = ((self._chosen[slot],), position)
            case CopyEmbed():
                read = [self._embeds[source] for source in batch.sources.tolist()]
                for (value, old), new, embed in zip(
                    read, batch.positions.tolist(), batch.embeds.tolist(), strict=True
                ):
                    self._embeds[embed] = (value, old if new < 0 else new)
            case Forward():
                self._forward(batch)
            case CopyKv():
                for source, target in _rows(batch.sources, batch.targets):
                    self._slots[target] = self._slots[source]
            case MaskKv():
                for page, mask in _rows(batch.pages, batch.masks):
                    first = page * self.model.page_size
                    for at in range(first, first + self.model.page_size):
                        token, position, _ = self._slots[at]
                        self._slots[at] = (token, position, bool(mask >> (at - first) & 1))
            case ShiftKv():
                for slot, distance in _rows(batch.slots, batch.distances):
                    token, position, masked = self._slots[slot]
                    self._slots[slot] = (token, position + distance, masked)
            case SwapOut():
                self._copy(batch.pages.tolist(), self._slots, batch.hosts.tolist(), self._hosts)
            case SwapIn():
                self._copy(batch.hosts.tolist(), self._hosts, batch.pages.tolist(), self._slots)
            case NextDist():
                return BatchResult(values=self._distributions(batch))
            case ReadHidden():  # of a script nothing is known
                means = np.ones((batch.starts.size - 1, self.model.hidden_size), np.float32)
                return BatchResult(values=Hidden(means))
            case ReadState():  # likewise
                return BatchResult(values=packed_states([b""] * batch.samplers.size))
            case Sample():
                return self._sample(batch)
            case Clear():
                pass  # no page is read before it is written
        return BatchResult()  # of samplers nothing but the script matters

    def _copy(
        self, sources: list[int], old: list[Slot], targets: list[int], new: list[Slot]
    ) -> None:
        size = self.model.page_size
        for source, target in zip(sources, targets, strict=True):
            new[target * size : (target + 1) * size] = old[source * size : (source + 1) * size]

    def _forward(self, batch: Forward) -> None:
        size = self.model.page_size
        written: list[tuple[int, Slot]] = []
        hidden: list[tuple[int, tuple[tuple[int, ...], int]]] = []
        for i in range(batch.has_masked.size):
            first, last = batch.input_starts[i : i + 2].tolist()
            inputs = [self._embeds[embed] for embed in batch.inputs[first:last].tolist()]
            of = slice(*batch.page_starts[i : i + 2].tolist())
            seen = sorted(
                (position, token)
                for page, used in _rows(batch.pages[of], batch.page_used[of])
                for token, position, masked in self._slots[page * size : page * size + used]
                if not masked
            )
            context = [token for _, token in seen]
            for (value, position), slot in zip(
                inputs, batch.output_slots[first:last].tolist(), strict=True
            ):
                if slot >= 0:
                    written.append((slot, (value[-1], position, False)))
            outputs = batch.outputs[slice(*batch.output_starts[i : i + 2].tolist())].tolist()
            for j, embed in enumerate(outputs):
                at = len(inputs) - len(outputs) + j
                before = tuple(value[-1] for value, _ in inputs[: at + 1])
                hidden.append((embed, ((*context, *before), inputs[at][1])))
        for slot, value in written:
            self._slots[slot] = value
        for embed, value in hidden:
            self._embeds[embed] = value

    def _next(self, embed: int) -> int:
        """The token that the script says after an embed."""
        context = self._embeds[embed][0]
        lines = self._script.read()
        text = ""
        if any(line.when for line in lines):
            text = self._tokenizer.decode(list(context), skip_special_tokens=False)
        answers = [
            line.tokens or self._encoded(line.text)
            for line in lines
            if not line.when or line.when in text
        ]
        return next_token(context, answers, self.model.stop_tokens[0])

    def _distributions(self, batch: NextDist) -> Distributions:
        widest = int(batch.k.max())
        tokens = np.zeros((batch.k.size, widest), np.int32)
        chances = np.zeros((batch.k.size, widest), np.float32)
        for row, (embed, k) in enumerate(_rows(batch.embeds, batch.k)):
            tokens[row, :k], chances[row, :k] = self._likely(self._next(embed), k)
        return Distributions(tokens, chances)

    def _likely(self, first: int, k: int) -> tuple[list[int], Any]:
        """The script's token, then the first ones of the vocabulary, ever less likely."""
        others = [token for token in range(k) if token != first][: k - 1]
        return [first, *others], [SURE, *((1 - SURE) / 2 ** (i + 1) for i in range(len(others)))]

    def _sample(self, batch: Sample) -> BatchResult:
        count, widest = batch.embeds.size, int(batch.top.max(initial=0))
        tokens = np.full(count, -1, np.int32)
        top = np.zeros((count, widest), np.int32)
        chances = np.zeros((count, widest), np.float32)
        for i, (embed, slot) in enumerate(_rows(batch.embeds, batch.samplers)):
            token = self._next(embed)
            at = int(batch.masked[i])
            if at >= 0:
                allowed = (
                    other
                    for other in (token, *range(self.model.vocab_size))
                    if batch.masks[at].tolist()[other // 32] >> other % 32 & 1
                )
                token = next(allowed, -1)
            if token >= 0:
                tokens[i] = self._chosen[slot] = token
            k = int(batch.top[i])
            if k:
                top[i, :k], found = self._likely(max(token, 0), k)
                chances[i, :k] = np.log(found)
        logprobs = np.full(count, np.log(SURE), np.float32)
        refused = dict.fromkeys(np.flatnonzero(tokens < 0).tolist(), "the grammar allows no token")
        return BatchResult(values=Samples(tokens, logprobs, top, chances), refused=refused)


def describe(config: ModelConfig, folder: Path) -> ModelDescription:
    """The worker's description of the model: any tokenizer will do."""
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return ModelDescription(
        name=config.name or "replay",
        architecture="replay",
        folder=str(folder),
        page_size=config.page_size,
        kv_pages=config.kv_pages or KV_PAGES,
        embeds=config.embeds or EMBEDS,
        vocab_size=facts["vocab_size"],
        hidden_size=1,
        max_position=facts["max_position_embeddings"],
        max_batch_tokens=config.max_batch_tokens,
        max_batch_commands=config.max_batch_commands,
        stop_tokens=[facts["eos_token_id"]],
        bos_token=facts["bos_token_id"],
        dtype="float32",
        traits=TRAITS,
        host_pages=config.host_pages or HOST_PAGES,
        turns=True,
        layers=1,
        heads=1,
        kv_heads=1,
    )


def _rows(*columns: Any) -> Any:
    return zip(*(column.tolist() for column in columns), strict=True)


def main() -> None:
    """Answers plans until `Stop`. Takes the inference worker's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", required=True)
    parser.add_argument("--config", required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the control process decides
    exit_with_parent()
    configs = [ModelConfig(**model) for model in json.loads(options.config)["models"]]
    models = [Replayer(describe(one, Path(one.source)), Path(one.source)) for one in configs]
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(options.connect)
    socket.send(encode(Hello(os.getpid(), "none", [one.model for one in models])))
    by_name = {one.model.name: one for one in models}
    while True:
        match decode(socket.recv()):
            case Stop():
                break
            case Plan() as plan:
                socket.send(encode(by_name[plan.model].run(plan)))
    socket.close()
    context.term()


if __name__ == "__main__":
    main()
