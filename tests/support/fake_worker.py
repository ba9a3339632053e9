"""The fake worker of all tests: runs plans by the rules of the wire protocol, without a model.

Its values are hashes of what made them, so that what a command must have seen can be computed
without it. A batch reads everything before it writes anything, so a batch that held a command
together with one that it depends on would give other values than the commands one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pie_py.device_programs.bound import Bound
from pie_py.device_programs.compiled import is_compiled, is_greedy
from pie_py.wire.device_programs import packed_states, unpacked
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    DETAILS,
    Attention,
    BatchResult,
    Clear,
    CopyEmbed,
    CopyKv,
    Cut,
    Distributions,
    EmbedImage,
    EmbedSampled,
    EmbedText,
    FeedSampler,
    Forward,
    Hidden,
    MaskKv,
    ModelDescription,
    NextDist,
    NoTokens,
    Plan,
    PlanResult,
    ReadHidden,
    ReadState,
    Sample,
    Samples,
    SetSampler,
    SwapIn,
    SwapOut,
    WriteState,
)
from pie_py.wire.steps import steps_of

Value = int
GARBAGE = -1
# What a value is of. Numbers, as the hash of a string is another in each process.
EMBEDDED, ATTENDED, ADAPTED, CHOSEN, SHOWN = range(5)


@dataclass(frozen=True)
class Slot:
    value: Value = GARBAGE
    position: int = -1
    masked: bool = False


def embedded(token: int | None) -> Value:
    """What the embed of a token holds."""
    return hash((EMBEDDED, -1 if token is None else token))


def shown(pairs: Iterable[tuple[Value, int]]) -> int:
    """What keys and values with their positions are to an input that sees them, in any order.

    A sum, so that what inputs see one after the other need not be put together for each of them.
    """
    return sum(map(hash, pairs))


def attend(value: Value, position: int, seen: int) -> Value:
    """What an input becomes that sees what is `shown`."""
    return hash((ATTENDED, value, position, seen))


def rows_of(mask: list[int]) -> list[list[bool]]:
    """Run-length rows as booleans, True for visible."""
    rows, at = [], 0
    while at < len(mask):
        lengths = mask[at + 1 : at + 1 + mask[at]]
        row: list[bool] = []
        for i, length in enumerate(lengths):
            row += [i % 2 == 1] * length
        rows.append(row)
        at += 1 + len(lengths)
    return rows


def run_forward(
    inputs: list[tuple[Value, int]], slots: list[Slot], mask: list[int], adapter: int = -1
) -> list[Value]:
    """The contract's rule: the inputs' new values, given the filled slots of the input pages.

    An input sees what the inputs before it have become, as it sees slots: whether a text runs at
    once or in parts changes nothing. A mask may show it later ones, too, as they come in.
    """
    hidden = [value for value, _ in inputs]
    count = len(inputs)
    if not mask:
        seen = shown((slot.value, slot.position) for slot in slots if not slot.masked)
        for i in sorted(range(count), key=lambda i: inputs[i][1]):
            position = inputs[i][1]
            (hidden[i],) = adapted([attend(hidden[i], position, seen)], adapter)
            seen += shown([(hidden[i], position)])
        return hidden
    for i, row in zip(range(count), rows_of(mask), strict=True):
        assert len(row) == len(slots) + count
        pairs = [
            (slot.value, slot.position)
            for slot, seen in zip(slots, row, strict=False)
            if seen and not slot.masked
        ]
        pairs += [(hidden[j], inputs[j][1]) for j in range(count) if row[len(slots) + j]]
        (hidden[i],) = adapted([attend(hidden[i], inputs[i][1], shown(pairs))], adapter)
    return hidden


def adapted(hidden: list[Value], adapter: int) -> list[Value]:
    """What values become through an adapter; -1 is none."""
    return hidden if adapter < 0 else [hash((ADAPTED, adapter, value)) for value in hidden]


def attention(columns: int, observed: int, rows: int) -> list[float]:
    """Numbers of a forward that observes."""
    return [
        float(row * 1000 + column + observed * 10_000)
        for row in range(rows)
        for column in range(columns)
    ]


def distribution(value: Value, k: int, vocab: int) -> list[int]:
    """The most likely tokens after a value."""
    return [(abs(value) + i) % vocab for i in range(k)]


def program_facts(bound: Bound) -> tuple[int, int, bool, bool, tuple[int, ...]]:
    """A device program's text and values, as far as its choices are concerned: another program,
    or other values, make other choices; whether it is greedy, and compiled; the tokens that it
    takes one after the other, if it is the library's `forced`.
    """
    text, values = zlib.crc32(bound.program.text.encode()), zlib.crc32(bound.values)
    forced: tuple[int, ...] = ()
    if {node.operation for node in bound.program.nodes} == {"state", "step", "gather"}:
        forced = tuple(np.frombuffer(bound.values, np.int64).tolist())
    return text, values, is_greedy(bound.program), is_compiled(bound.program), forced


@dataclass
class Sampler:
    """A sampler as the contract describes it: what it is, and what it remembers."""

    facts: tuple[object, ...]
    counts: bool
    history: tuple[tuple[int, bool], ...] = ()  # tokens, and whether they were generated
    last: int | None = None

    def feed(self, tokens: list[int], generated: bool) -> None:
        if self.counts:
            self.history += tuple((token, generated) for token in tokens)

    def choose(self, value: Value, step: int, mask: tuple[int, ...], vocab: int) -> int | None:
        """The next token after a value, or None: no token but those of the mask's bits is
        allowed.
        """
        token = self.pick(value, step, mask, vocab)
        self.last = token
        if token is not None:
            self.feed([token], True)
        return token

    def pick(self, value: Value, step: int, mask: tuple[int, ...], vocab: int) -> int | None:
        """As `choose`, remembering nothing."""
        token = hash((CHOSEN, value, self.facts, self.history, step, mask)) % vocab
        if mask:
            allowed = [t for t in range(vocab) if mask[t // 32] >> t % 32 & 1]
            return allowed[token % len(allowed)] if allowed else None
        return token


class FakeWorker:
    """Slots, embeds, samplers and the host pool of a model that is described, and its commands.

    Attributes:
        sampler: makes samplers.
        holders: references of each page, which the control process counts.
        fail_kinds: kinds of batches that fail.
        refusals: by a kind of batch, the reasons for which it refuses commands.
        sizes: kind, commands, rows of every batch that ran.
    """

    sampler = Sampler

    def __init__(self, description: ModelDescription) -> None:
        self.facts = description
        self.slots = [Slot()] * (description.kv_pages * description.page_size)
        self.host = [Slot()] * (description.host_pages * description.page_size)
        self.embeds: list[tuple[Value, int]] = [(GARBAGE, -1)] * (
            description.embeds + description.draft_embeds
        )
        self.samplers: dict[int, Sampler] = {}
        self.holders = np.zeros(description.kv_pages, np.int32)
        self.fail_kinds: set[str] = set()
        self.refusals: dict[str, dict[int, str]] = {}
        self.sizes: list[tuple[str, int, int]] = []

    def run(self, plan: Plan) -> PlanResult:
        sent = decode(encode(plan))
        assert isinstance(sent, Plan)
        results = []
        for batch in chain.from_iterable(steps_of(sent, self.facts.page_size)):
            if batch.kind in self.fail_kinds:
                results.append(BatchResult(error="told to fail"))
            else:
                result = getattr(self, batch.kind)(batch)
                result.refused = {**(result.refused or {}), **self.refusals.get(batch.kind, {})}
                results.append(result)
        answer = decode(encode(PlanResult(plan.id, plan.model, results)))
        assert isinstance(answer, PlanResult)
        return answer

    def embed_text(self, batch: EmbedText) -> BatchResult:
        self._note("embed_text", 1, len(batch.tokens))
        assert len(set(batch.embeds.tolist())) == len(batch.embeds)
        for token, position, embed in zip(
            batch.tokens.tolist(), batch.positions.tolist(), batch.embeds.tolist(), strict=True
        ):
            self.embeds[embed] = (embedded(token), position)
        return BatchResult()

    def embed_image(self, batch: EmbedImage) -> BatchResult:
        self._note("embed_image", len(batch.lengths), len(batch.embeds))
        assert len(set(batch.embeds.tolist())) == len(batch.embeds)
        seen = zlib.crc32(batch.files.tobytes())
        for i, (position, embed) in enumerate(
            zip(batch.positions.tolist(), batch.embeds.tolist(), strict=True)
        ):
            self.embeds[embed] = (hash((SHOWN, seen, i)), position)
        return BatchResult()

    def copy_embed(self, batch: CopyEmbed) -> BatchResult:
        self._note("copy_embed", 1, len(batch.embeds))
        assert len(set(batch.embeds.tolist())) == len(batch.embeds)
        read = [self.embeds[e] for e in batch.sources.tolist()]
        for (value, old), new, embed in zip(
            read, batch.positions.tolist(), batch.embeds.tolist(), strict=True
        ):
            self.embeds[embed] = (value, old if new < 0 else new)
        return BatchResult()

    def forward(self, batch: Forward) -> BatchResult:
        count = len(batch.input_starts) - 1
        self._note("forward", count, len(batch.inputs))
        size = self.facts.page_size
        written: dict[int, Slot] = {}
        embedded: dict[int, tuple[Value, int]] = {}
        notes: list[list[float]] = []
        for i in range(count):
            first, last = batch.input_starts[i : i + 2].tolist()
            inputs = [self.embeds[e] for e in batch.inputs[first:last].tolist()]
            pages = slice(*batch.page_starts[i : i + 2].tolist())
            slots = [
                self.slots[page * size + offset]
                for page, used in zip(
                    batch.pages[pages].tolist(), batch.page_used[pages].tolist(), strict=True
                )
                for offset in range(used)
            ]
            assert not any(slot.masked for slot in slots) or batch.has_masked[i]
            mask = batch.mask[slice(*batch.mask_starts[i : i + 2].tolist())].tolist()
            adapter = int(batch.adapters[i]) if len(batch.adapters) else -1
            hidden = run_forward(inputs, slots, mask, adapter)
            observed = int(batch.observed[i]) if len(batch.observed) else 0
            rows = 0
            if observed:
                assert observed <= len(inputs)
                detail = DETAILS[batch.detail[i]]
                layers, heads = self.facts.layers, self.facts.heads
                rows = {"total": 1, "layers": layers, "heads": layers * heads}[detail]
            notes.append(attention(len(slots) + len(inputs), observed, rows))
            for value, (_, position), slot in zip(
                hidden, inputs, batch.output_slots[first:last].tolist(), strict=True
            ):
                if slot >= 0:
                    assert slot not in written
                    written[slot] = Slot(value, position)  # live, whatever the slot was
            outputs = batch.outputs[slice(*batch.output_starts[i : i + 2].tolist())].tolist()
            for j, embed in enumerate(outputs):
                at = len(inputs) - len(outputs) + j
                assert embed not in embedded
                embedded[embed] = (hidden[at], inputs[at][1])
        for slot, kept in written.items():
            self.slots[slot] = kept
        for embed, pair in embedded.items():
            self.embeds[embed] = pair
        if not len(batch.observed):
            return BatchResult()
        starts = np.cumsum([0, *map(len, notes)], dtype=np.int32)
        numbers = np.array([x for note in notes for x in note], np.float32)
        return BatchResult(values=Attention(starts, numbers))

    def copy_kv(self, batch: CopyKv) -> BatchResult:
        self._note("copy_kv", 1, len(batch.sources))
        read = [self.slots[s] for s in batch.sources.tolist()]
        in_order = list(self.slots)
        for source, target in zip(batch.sources.tolist(), batch.targets.tolist(), strict=True):
            in_order[target] = in_order[source]
        for target, slot in zip(batch.targets.tolist(), read, strict=True):
            self.slots[target] = slot
        assert in_order == self.slots  # either way of copying must do
        return BatchResult()

    def mask_kv(self, batch: MaskKv) -> BatchResult:
        self._note("mask_kv", 1, len(batch.pages))
        assert len(set(batch.pages.tolist())) == len(batch.pages)
        size = self.facts.page_size
        for page, mask in zip(batch.pages.tolist(), batch.masks.tolist(), strict=True):
            for offset in range(size):
                old = self.slots[page * size + offset]
                self.slots[page * size + offset] = Slot(
                    old.value, old.position, bool(mask >> offset & 1)
                )
        return BatchResult()

    def clear(self, batch: Clear) -> BatchResult:
        size = self.facts.page_size
        for slot in batch.slots.tolist():
            self.slots[slot] = Slot(0, 0)
        for embed in batch.embeds.tolist():
            self.embeds[embed] = (0, 0)
        for host in batch.hosts.tolist():
            self.host[host * size : (host + 1) * size] = [Slot(0, 0)] * size
        for sampler in batch.samplers.tolist():
            self.samplers[sampler].last = None
        return BatchResult()

    def swap_out(self, batch: SwapOut) -> BatchResult:
        self._note("swap_out", 1, len(batch.pages))
        self._swap(batch.pages.tolist(), self.slots, batch.hosts.tolist(), self.host)
        return BatchResult()

    def swap_in(self, batch: SwapIn) -> BatchResult:
        self._note("swap_in", 1, len(batch.pages))
        self._swap(batch.hosts.tolist(), self.host, batch.pages.tolist(), self.slots)
        return BatchResult()

    def _swap(
        self, sources: list[int], old: list[Slot], targets: list[int], new: list[Slot]
    ) -> None:
        assert len(set(targets)) == len(targets)
        size = self.facts.page_size
        for source, target in zip(sources, targets, strict=True):
            new[target * size : (target + 1) * size] = old[source * size : (source + 1) * size]
            if old is self.slots and self.holders[source]:
                continue  # others read it still
            old[source * size : (source + 1) * size] = [Slot()] * size  # nobody may read it now

    def next_dist(self, batch: NextDist) -> BatchResult:
        self._note("next_dist", len(batch.embeds), len(batch.embeds))
        widest = int(batch.k.max())
        tokens = np.zeros((len(batch.k), widest), np.int32)
        chances = np.zeros((len(batch.k), widest), np.float32)
        for i, (embed, k) in enumerate(zip(batch.embeds.tolist(), batch.k.tolist(), strict=True)):
            tokens[i, :k], chances[i, :k] = self.distribution(self.embeds[embed][0], k)
        return BatchResult(values=Distributions(tokens, chances))

    def read_hidden(self, batch: ReadHidden) -> BatchResult:
        self._note("read_hidden", len(batch.starts) - 1, len(batch.embeds))
        values = [hash(self.embeds[embed][0]) % 1009 for embed in batch.embeds.tolist()]
        parts = np.split(np.array(values, np.float32), batch.starts[1:-1])
        means = np.array([part.mean() for part in parts], np.float32)
        return BatchResult(values=Hidden(np.repeat(means[:, None], self.facts.hidden_size, 1)))

    def read_state(self, batch: ReadState) -> BatchResult:
        self._note("read_state", len(batch.samplers), len(batch.samplers))
        return BatchResult(values=packed_states([b""] * len(batch.samplers)))

    def write_state(self, batch: WriteState) -> BatchResult:
        self._note("write_state", len(batch.samplers), len(batch.samplers))
        return BatchResult()

    def distribution(self, value: Value, k: int) -> tuple[list[int], NDArray[np.float32]]:
        """The most likely tokens after a value, and their probabilities."""
        return distribution(value, k, self.facts.vocab_size), np.ones(k, np.float32)

    def log_probability(self, value: Value, token: int) -> float:
        """That of a token after a value; only a worker of texts has it."""
        return 0.0

    def set_sampler(self, batch: SetSampler) -> BatchResult:
        self._note("set_sampler", len(batch.samplers), len(batch.samplers))
        rows = [row for row in batch.rows.tolist() if row >= 0]
        assert len(set(rows)) == len(rows)
        assert all(row < self.facts.count_rows for row in rows)
        programs, _ = unpacked(batch, self.facts.vocab_size)
        for i, slot in enumerate(batch.samplers.tolist()):
            facts = (
                int(batch.seeds[i, 0]) + (int(batch.seeds[i, 1]) << 32),
                program_facts(programs[i]),
            )
            self.samplers[slot] = self.sampler(facts, bool(batch.rows[i] >= 0))
        return BatchResult()

    def feed_sampler(self, batch: FeedSampler) -> BatchResult:
        self._note("feed_sampler", len(batch.samplers), len(batch.tokens))
        assert len(set(batch.samplers.tolist())) == len(batch.samplers)
        for i, slot in enumerate(batch.samplers.tolist()):
            part = slice(*batch.starts[i : i + 2].tolist())
            self.samplers[slot].feed(batch.tokens[part].tolist(), bool(batch.generated[i]))
        return BatchResult()

    def sample(self, batch: Sample) -> BatchResult:
        count = len(batch.embeds)
        self._note("sample", count, count)
        drafts = batch.drafts.tolist() or [-1] * count
        assert len(set(batch.samplers[np.array(drafts) < 0].tolist())) == drafts.count(-1)
        settled = False  # the sampler's token is known: later rows of it do not stand
        vocab = self.facts.vocab_size
        width = int(batch.top.max())
        tokens, logs = np.full(count, -1, np.int32), np.zeros(count, np.float32)
        top = np.zeros((count, width), np.int32)
        for i, (embed, slot) in enumerate(
            zip(batch.embeds.tolist(), batch.samplers.tolist(), strict=True)
        ):
            at = int(batch.masked[i])
            mask = tuple(batch.masks[at].tolist()) if at >= 0 else ()
            value = self.embeds[embed][0]
            step = int(batch.steps[i])
            if settled:
                token = self.samplers[slot].pick(value, step, mask, vocab)
            else:
                token = self.samplers[slot].choose(value, step, mask, vocab)
            settled = drafts[i] >= 0 and (settled or token != drafts[i])
            if token is not None:
                tokens[i], logs[i] = token, self.log_probability(value, token)
            top[i, : batch.top[i]] = [(abs(value) + j) % vocab for j in range(batch.top[i])]
        refused = dict.fromkeys(np.flatnonzero(tokens < 0).tolist(), "ruled out")
        return BatchResult(
            values=Samples(tokens, logs, top, np.zeros((count, width), np.float32)),
            refused=refused,
        )

    def embed_sampled(self, batch: EmbedSampled) -> BatchResult:
        self._note("embed_sampled", len(batch.samplers), len(batch.samplers))
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
            if token is None:
                refused[i] = "no token"
            self.embeds[embed] = (embedded(token), position)
        return BatchResult(refused=refused)

    def _note(self, kind: str, commands: int, rows: int) -> None:
        self.sizes.append((kind, commands, rows))


class FakeLink:
    """A fake worker as the control process sees it: it has run a plan once the test says so."""

    def __init__(self, run: Callable[[Plan], PlanResult]) -> None:
        """Takes what runs a plan; its result is kept until `answer`."""
        self.run = run
        self.plans: list[Plan] = []  # at the worker
        self.results: list[PlanResult] = []
        self.ran: list[Plan] = []
        self.cuts: list[Cut] = []  # which come too late: `run` has run the whole plan
        self.on_results: Callable[[list[PlanResult]], None] = lambda results: None

    @property
    def in_flight(self) -> int:
        return len(self.plans)

    @property
    def idle(self) -> bool:
        return not self.plans

    def send(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.results.append(self.run(plan))

    def order(self, message: object) -> None:
        if isinstance(message, Cut):
            self.cuts.append(message)
        elif not isinstance(message, NoTokens):
            raise NotImplementedError("the test loads no adapters")

    def answer(self) -> None:
        """The worker has run its first plan."""
        self.ran.append(self.plans.pop(0))
        self.on_results([self.results.pop(0)])
