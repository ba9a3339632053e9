"""The control layer in this process, with the fake worker and a vocabulary of letters.

The real wiring, engine and API run the programs. Only the model is replaced, by one whose answer
for any sequence of tokens is known (`next_token`), whatever the pages it lies in.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import trio
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from pie_control.api.runtime import GuestClocks
from pie_control.confined.pool import ConfinedPool
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.models.tokenizer import TextCodec
from pie_control.programs.components import Components
from pie_control.programs.guests import Guests, Instantiation, WarmInstances
from pie_control.programs.store import Program, ProgramKind
from pie_control.server import make_engine
from pie_control.wasm.engine import TABLE_ELEMENTS, GuestLimits
from pie_control.wasm.linker import Linker
from pie_py.config.limits import Limits, Quota
from pie_py.config.scheduling import InterceptionConfig
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import ModelDescription, Plan
from support import rig
from support.fake_worker import FakeLink, FakeWorker, Sampler, Value, embedded, run_forward

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


def likely(value: Value, rank: int = 0) -> int:
    """A likely token after a value: letters first; `rank` 0 is the most likely."""
    return 97 + (abs(value) + rank) % 26 if rank < 26 else (122 + rank) % VOCABULARY


def next_token(tokens: list[int], rank: int = 0) -> int:
    """The worker's answer after a sequence of tokens; `rank` 0 is the most likely."""
    inputs = [(embedded(token), position) for position, token in enumerate(tokens)]
    return likely(run_forward(inputs, [], [])[-1], rank)


def continuation(tokens: list[int], count: int) -> list[int]:
    """The greedy continuation."""
    tokens = list(tokens)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[start:]


class TextSampler(Sampler):
    """Greedy if its program is, else one of the likelier tokens by a hash of all it knows."""

    def pick(self, value: Value, step: int, mask: tuple[int, ...], vocab: int) -> int | None:
        """The next token, a likely one, or of any that a mask allows; None if it allows none."""
        of_program: Any = self.facts[1]
        _, _, greedy, _, forced = of_program
        if forced:
            return int(forced[step])
        rank = 0
        if not greedy or self.counts:
            # Not `hash`: it mixes a tuple so little that two seeds may agree for a whole text.
            known = repr((self.facts, self.history, step)).encode()
            rank = blake2b(known, digest_size=1).digest()[0] % 4
        tokens = [likely(value, other) for other in range(vocab if mask else 26)]
        allowed = [token for token in tokens if not mask or mask[token // 32] >> token % 32 & 1]
        return allowed[min(rank, len(allowed) - 1)] if allowed else None


class TextWorker(FakeWorker):
    """The fake worker with a vocabulary of letters, whose next token after a text is known."""

    sampler = TextSampler

    @property
    def forwards(self) -> int:
        """How many it has run."""
        return sum(commands for kind, commands, _ in self.sizes if kind == "forward")

    def distribution(self, value: Value, k: int) -> tuple[list[int], NDArray[np.float32]]:
        """The most likely tokens after a value, and their probabilities."""
        weights = np.exp(-np.arange(VOCABULARY) / 4)
        chances = (weights[:k] / weights.sum()).astype(np.float32)
        return [likely(value, rank) for rank in range(k)], chances

    def log_probability(self, value: Value, token: int) -> float:
        """As of the whole distribution."""
        tokens, chances = self.distribution(value, VOCABULARY)
        return math.log(chances[tokens.index(token)])


# The head of programs that look at errors.
FAILS = """
import asyncio
from inferlet import *
model = Model.load()

async def fails(call):
    # The error of a call, which it must have.
    try:
        answer = call()
        if asyncio.iscoroutine(answer): await answer
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@dataclass
class Outcome:
    """What became of a program."""

    ok: bool
    text: str
    sent: list[str | bytes]
    log: list[tuple[str, str]]  # level and line
    cpu_ns: int


class _Link(FakeLink):
    """Answers every plan in the next turn of the event loop."""

    def send(self, plan: Plan) -> None:
        super().send(plan)
        trio.lowlevel.current_trio_token().run_sync_soon(self.answer)


class Rig(rig.Rig):
    """Runs programs, several at once if told, and returns what became of them."""

    def __init__(
        self,
        folder: Path,
        spares: int = 0,
        compiler: Literal["optimizing", "baseline"] = "optimizing",
        **facts: Any,
    ) -> None:
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
        config = ServerConfig(
            data_folder=folder / "data",
            limits=Limits(wall_seconds=60),
            max_instances=100,
            spare_instances=spares,
            compiler=compiler,
            interception=InterceptionConfig(policy="preserve"),
            quota=Quota(share=1.0, launches=math.inf),
        )
        self.engine = make_engine(config)
        linker = Linker(self.engine)
        limits = GuestLimits(config.limits.memory, TABLE_ELEMENTS)
        instantiation = Instantiation(linker, limits, 0)
        self.warm = WarmInstances(instantiation, spares, lambda: self.registry.live_count > 0)

        def guests(confined: ConfinedPool) -> Guests:
            folder, offer = config.cache_folder, self.warm.offer
            components = Components(self.engine, folder, offer, confined)
            return Guests(instantiation, components, self.warm)

        self.worker = TextWorker(self.facts)  # another one may take its place between runs
        link = _Link(lambda plan: self.worker.run(plan))
        # Every run has a loop of its own, and `trio.current_time` looks for the loop at each call.
        super().__init__(
            config,
            worker=link,
            clock=trio.current_time,
            guests=guests,
            dates=GuestClocks(time.time_ns, time.monotonic_ns),
        )
        link.on_results = self.parts.dispatcher.on_results
        linker.define(self.host_functions)

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
            programs.append((self.programs.put(data, name, kind, USER), args))
        return trio.run(self._run, programs, send or [])

    async def _run(
        self, programs: list[tuple[Program, list[str]]], send: list[str | bytes]
    ) -> list[Outcome]:
        parts = self.parts
        service = parts.models.add(self.facts)  # with empty pools, in every run
        parts.models.codecs["hash"] = TextCodec(Path(self.facts.folder))
        parts.launcher.models_ready.set()
        outcomes = []
        with trio.fail_after(600) as scope:  # the Python runtime may have to be compiled first
            async with trio.open_nursery() as nursery:
                await nursery.start(parts.run)
                if self.config.spare_instances:
                    await parts.launcher.prepare(programs[0][0])
                    while len(self.warm) < self.config.spare_instances:
                        await trio.sleep(0.001)
                instances = []
                for program, args in programs:
                    await parts.launcher.until_can_start(program)
                    instance = parts.launcher.start(program, args, USER)
                    for message in send:
                        box: Any = instance.texts if isinstance(message, str) else instance.blobs
                        box.put(message)
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
    while (event := instance.outbox.pop()) is not None and not isinstance(event, InstanceEnded):
        sent.append(event)
    assert instance.ended is not None
    return Outcome(
        ok=instance.state is InstanceState.FINISHED,
        text=instance.ended.text,
        sent=sent,
        log=[(line.level, line.text) for line in instance.log],
        cpu_ns=instance.cpu_ns,
    )
