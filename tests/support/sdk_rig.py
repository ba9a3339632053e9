"""The control layer in this process, with a worker whose next token is a hash of what it sees.

The real wiring, engine and API run the programs. Only the model is replaced, by one whose answer
for any sequence of tokens is known (`next_token`), whatever the pages it lies in.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from pie_control.api.runtime import GuestClocks
from pie_control.instances.instance import Ended, Instance, State
from pie_control.models.tokenizer import TextCodec
from pie_control.programs.components import Components
from pie_control.programs.guests import Guests
from pie_control.programs.store import Program, ProgramKind, ProgramStore
from pie_control.programs.warm import WarmInstances
from pie_control.server import make_engine
from pie_control.wasm import GuestLimits, Linker
from pie_control.wiring import Wiring
from pie_py.config.limits import Limits
from pie_py.config.scheduling import InterceptionConfig
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import (
    BatchResult,
    CopyKv,
    Distributions,
    EmbedSampled,
    EmbedText,
    FeedSampler,
    Forward,
    ModelDescription,
    NextDist,
    Plan,
    PlanResult,
    Sample,
    Samples,
    SetSampler,
)

PAGE_SIZE = 8
BOS, END = 256, 257
SPECIAL = ["<bos>", "<end>", "<user>", "<assistant>", "<system>"]
VOCABULARY = 256 + len(SPECIAL)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ (m.content.split(past)[-1]"
    " if past and not loop.last else m.content) | trim }}{{ m.name }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = "tester"


def make_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: token `b` is byte `b`, then the special tokens."""
    characters = {c: i for i, c in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    # What makes it a tokenizer whose texts begin with <bos>.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<end>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _byte_characters() -> list[str]:
    """The character that byte-level BPE writes for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(0x100 + others.index(b)) for b in range(256)]


def next_token(tokens: list[int], rank: int = 0) -> int:
    """The worker's answer after a sequence of tokens; `rank` 0 is the most likely."""
    digest = hashlib.sha256(repr(list(enumerate(tokens))).encode()).digest()
    return 97 + (digest[0] + rank) % 26 if rank < 26 else (122 + rank) % VOCABULARY


def continuation(tokens: list[int], count: int) -> list[int]:
    """The greedy continuation."""
    tokens = list(tokens)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[start:]


@dataclass
class HashSampler:
    """A sampler: greedy at temperature 0, else one of the likelier tokens by a hash of all it
    knows.
    """

    facts: tuple[float, ...]  # numbers, top-k, seed
    banned: frozenset[int]
    counts: bool
    history: list[int] = field(default_factory=list)
    last: int = -1

    def feed(self, tokens: list[int]) -> None:
        if self.counts:
            self.history += tokens

    def choose(self, sequence: list[int], step: int, mask: Any = None) -> int:
        """The next token, or -1 if every likely one is banned; of any if a mask says which."""
        rank = 0
        if self.facts[0] or self.counts:
            facts = repr((self.facts, self.history, step))
            rank = hashlib.sha256(facts.encode()).digest()[0] % 4
        allowed = [
            token
            for other in range(26 if mask is None else VOCABULARY)
            if (token := next_token(sequence, other)) not in self.banned
            and (mask is None or int(mask[token // 32]) >> token % 32 & 1)
        ]
        self.last = allowed[min(rank, len(allowed) - 1)] if allowed else -1
        self.feed([self.last])
        return self.last


@dataclass
class HashWorker:
    """Runs plans. A slot holds its token and position; a hidden state is all that its token saw."""

    facts: ModelDescription
    slots: list[tuple[int, int] | None] = field(init=False)  # (position, token)
    embeds: list[Any] = field(init=False)  # (position, token) or a hidden state
    samplers: dict[int, HashSampler] = field(default_factory=dict)
    forwards: int = 0

    def __post_init__(self) -> None:
        self.slots = [None] * (self.facts.kv_pages * self.facts.page_size)
        self.embeds = [None] * self.facts.embeds

    def run(self, plan: Plan) -> PlanResult:
        results = []
        for batch in plan.batches:
            match batch:
                case EmbedText():
                    for token, position, embed in zip(
                        batch.tokens.tolist(),
                        batch.positions.tolist(),
                        batch.embeds.tolist(),
                        strict=True,
                    ):
                        self.embeds[embed] = (position, token)
                    results.append(BatchResult())
                case Forward():
                    self._forward(batch)
                    results.append(BatchResult())
                case CopyKv():
                    for source, target in zip(batch.sources, batch.targets, strict=True):
                        self.slots[target] = self.slots[source]
                    results.append(BatchResult())
                case NextDist():
                    results.append(BatchResult(distributions=self._next_dist(batch)))
                case SetSampler():
                    for i, slot in enumerate(batch.samplers.tolist()):
                        seed = batch.seeds[i].tolist()
                        facts = (*batch.numbers[i].tolist(), int(batch.top_k[i]), *seed)
                        bias = slice(*batch.bias_starts[i : i + 2].tolist())
                        banned = frozenset(batch.bias_tokens[bias].tolist())
                        self.samplers[slot] = HashSampler(facts, banned, bool(batch.rows[i] >= 0))
                    results.append(BatchResult())
                case FeedSampler():
                    for i, slot in enumerate(batch.samplers.tolist()):
                        part = slice(*batch.starts[i : i + 2].tolist())
                        self.samplers[slot].feed(batch.tokens[part].tolist())
                    results.append(BatchResult())
                case Sample():
                    results.append(self._sample(batch))
                case EmbedSampled():
                    results.append(self._embed_sampled(batch))
                case _:
                    raise AssertionError(batch.kind)
        return PlanResult(plan.id, plan.model, results)

    def _forward(self, batch: Forward) -> None:
        size = self.facts.page_size
        for i in range(len(batch.input_starts) - 1):
            self.forwards += 1
            first, last = batch.input_starts[i : i + 2].tolist()
            inputs = [self.embeds[e] for e in batch.inputs[first:last].tolist()]
            pages = slice(*batch.page_starts[i : i + 2].tolist())
            cached = [
                self.slots[page * size + offset]
                for page, used in zip(
                    batch.pages[pages].tolist(), batch.page_used[pages].tolist(), strict=True
                )
                for offset in range(used)
            ]
            for pair, slot in zip(inputs, batch.output_slots[first:last].tolist(), strict=True):
                if slot >= 0:
                    self.slots[slot] = pair
            outputs = batch.outputs[slice(*batch.output_starts[i : i + 2].tolist())].tolist()
            for j, embed in enumerate(outputs):
                at = len(inputs) - len(outputs) + j
                self.embeds[embed] = sorted([*cached, *inputs[: at + 1]])

    def _sample(self, batch: Sample) -> BatchResult:
        tokens = []
        for embed, slot, step, row in zip(
            batch.embeds.tolist(),
            batch.samplers.tolist(),
            batch.steps.tolist(),
            batch.masked.tolist(),
            strict=True,
        ):
            mask = None if row < 0 else batch.masks[row]
            tokens.append(self.samplers[slot].choose(self._sequence(embed), step, mask))
        refused = {i: "ruled out" for i, token in enumerate(tokens) if token < 0}
        none = np.zeros((len(tokens), 0))
        samples = Samples(
            np.array(tokens, np.int32),
            np.zeros(len(tokens), np.float32),
            none.astype(np.int32),
            none.astype(np.float32),
        )
        return BatchResult(samples=samples, refused=refused)

    def _embed_sampled(self, batch: EmbedSampled) -> BatchResult:
        refused = {}
        for i, (slot, position, embed) in enumerate(
            zip(
                batch.samplers.tolist(),
                batch.positions.tolist(),
                batch.embeds.tolist(),
                strict=True,
            )
        ):
            token = self.samplers[slot].last
            if token < 0:
                refused[i] = "no token"
            self.embeds[embed] = (position, token)
        return BatchResult(refused=refused)

    def _sequence(self, embed: int) -> list[int]:
        """The tokens that a hidden state has seen, which must be at the positions from 0 on."""
        seen = self.embeds[embed]
        assert [position for position, _ in seen] == list(range(len(seen))), seen
        return [token for _, token in seen]

    def _next_dist(self, batch: NextDist) -> Distributions:
        widest = int(batch.k.max())
        tokens = np.zeros((len(batch.k), widest), np.int32)
        chances = np.zeros((len(batch.k), widest), np.float32)
        for i, (embed, k) in enumerate(zip(batch.embeds.tolist(), batch.k.tolist(), strict=True)):
            sequence = self._sequence(embed)
            tokens[i, :k] = [next_token(sequence, rank) for rank in range(k)]
            weights = [math.exp(-rank / 4) for rank in range(VOCABULARY)]
            chances[i, :k] = np.array(weights[:k]) / sum(weights)
        return Distributions(tokens, chances)


@dataclass
class Outcome:
    """What became of a program."""

    ok: bool
    text: str
    sent: list[str | bytes]
    log: list[tuple[str, str]]  # level and line
    cpu_ns: int


class _Link:
    """Answers every plan in the next turn of the event loop."""

    def __init__(self, worker: HashWorker) -> None:
        self.worker = worker
        self.on_result: Any = None
        self.in_flight = 0

    @property
    def idle(self) -> bool:
        return not self.in_flight

    def order(self, message: object) -> None:
        raise NotImplementedError("no adapter is loaded")

    def send(self, plan: Plan) -> None:
        self.in_flight += 1
        result = self.worker.run(plan)

        def answer() -> None:
            self.in_flight -= 1
            self.on_result(result)

        trio.lowlevel.current_trio_token().run_sync_soon(answer)


class Rig:
    """Runs programs, several at once if told, and returns what became of them."""

    def __init__(self, folder: Path, spares: int = 0, **facts: Any) -> None:
        self._config = ServerConfig(
            data_folder=folder / "data",
            limits=Limits(wall_seconds=60, log_lines=10_000),
            max_instances=100,
            spare_instances=spares,
            interception=InterceptionConfig(policy="preserve"),
        )
        make_tokenizer(folder)
        self.facts = ModelDescription(
            **{
                "name": "hash",
                "architecture": "hash",
                "folder": str(folder),
                "page_size": PAGE_SIZE,
                "kv_pages": 512,
                "embeds": 512,
                "vocab_size": VOCABULARY,
                "hidden_size": 1,
                "max_position": 2048,
                "max_batch_tokens": 64,
                "max_batch_commands": 64,
                "stop_tokens": [END],
                "bos_token": BOS,
                "dtype": "float32",
                "traits": [
                    "allocate",
                    "forward",
                    "input-text",
                    "tokenize",
                    "output-text",
                    "sample",
                ],
                **facts,
            }
        )
        self.engine = make_engine(self._config)
        linker = Linker(self.engine)
        limits = GuestLimits(self._config.limits.memory, self._config.limits.table_elements)
        self.warm = WarmInstances(
            linker, limits, spares, lambda: self._parts.registry.live_count > 0
        )
        components = Components(self.engine, self._config.cache_folder, self.warm.offer)
        self._programs = ProgramStore(folder / "data" / "programs", 256 << 20, time.time_ns)
        self._link = _Link(HashWorker(self.facts))
        # Every run has a loop of its own, and `trio.current_time` looks for the loop at each call.
        self._parts = Wiring(
            self._config,
            Guests(linker, limits, components, self.warm),
            self._programs,
            self._link,
            trio.current_time,
            GuestClocks(time.time_ns, time.monotonic_ns),
        )
        self._link.on_result = self._parts.dispatcher.on_result
        linker.define(self._parts.host_functions())

    @property
    def worker(self) -> HashWorker:
        """The model that programs run at; another one may take its place between runs."""
        return self._link.worker

    @worker.setter
    def worker(self, worker: HashWorker) -> None:
        self._link.worker = worker

    def run(
        self,
        source: str | bytes,
        *args: str,
        send: list[str | bytes] | None = None,
        name: str = "program",
    ) -> Outcome:
        """Runs one program to its end; a component if the source is bytes."""
        return self.run_all([(source, list(args))], send=send, name=name)[0]

    def answer(self, head: str, body: str, *args: str, **options: Any) -> Any:
        """What a program returns as JSON, whose `main` has this body."""
        lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
        outcome = self.run(f"{head}\nasync def main(args):\n{lines}\n", *args, **options)
        assert outcome.ok, outcome.text
        return json.loads(outcome.text)

    def run_all(
        self,
        jobs: Sequence[tuple[str | bytes, list[str]]],
        send: list[str | bytes] | None = None,
        name: str = "program",
    ) -> list[Outcome]:
        """Runs programs at the same time."""
        programs = []
        for source, args in jobs:
            kind: ProgramKind = "python" if isinstance(source, str) else "component"
            data = source.encode() if isinstance(source, str) else source
            programs.append((self._programs.put(data, name, kind, USER), args))
        return trio.run(self._run, programs, send or [])

    async def _run(
        self, programs: list[tuple[Program, list[str]]], send: list[str | bytes]
    ) -> list[Outcome]:
        parts = self._parts
        service = parts.models.add(self.facts)  # with empty pools, in every run
        parts.models.codecs["hash"] = TextCodec(Path(self.facts.folder))
        parts.launcher.models_ready.set()
        outcomes = []
        with trio.fail_after(600) as scope:  # the Python runtime may have to be compiled first
            async with trio.open_nursery() as nursery:
                await nursery.start(parts.run)
                if self._config.spare_instances:
                    await parts.launcher.prepare(programs[0][0])
                    while len(self.warm) < self._config.spare_instances:
                        await trio.sleep(0.001)
                instances = []
                for program, args in programs:
                    instance = await parts.launcher.launch(program, args, USER)
                    for message in send:
                        box: Any = instance.texts if isinstance(message, str) else instance.blobs
                        box.put(message, len(message))
                    instances.append(instance)
                scope.deadline = trio.current_time() + 60
                for instance in instances:
                    await instance.ended_event.wait()
                    outcomes.append(_outcome(instance))
                nursery.cancel_scope.cancel()
        assert service.pages.free == service.pages.size - service.exports.pages
        return outcomes


def _outcome(instance: Instance) -> Outcome:
    sent: list[str | bytes] = []
    while (event := instance.outbox.pop()) is not None and not isinstance(event, Ended):
        sent.append(event)
    assert instance.ended is not None
    return Outcome(
        ok=instance.state is State.FINISHED,
        text=instance.ended.text,
        sent=sent,
        log=[(line.level, line.text) for line in instance.log],
        cpu_ns=instance.cpu_ns,
    )
