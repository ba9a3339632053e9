"""Random programs of many instances, compared with the same calls carried out one by one.

The reference below knows only the contract: virtual pages of slots, embeds, calls that take effect
at once. The real side batches across queues, keeps up to two plans in flight, kills instances,
reuses their pages. Whatever it does, every distribution, fill count and error must be the
reference's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.fake_worker import (
    Sampler,
    Slot,
    attention,
    distribution,
    embedded,
    program_facts,
    run_forward,
)
from support.instances import take
from support.programs_read import bound_by, create_sampler
from support.rig import adapter, offload, runtime
from support.scheduler_fixtures import Server

import inferlet
from pie_control.api import allocate, forward, sample, text
from pie_control.api.adapter import forward_with_attention
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance

PAGE = 8


@dataclass(eq=False)
class Page:
    """A page as the contract describes it: its filled slots, the first ones."""

    slots: list[Slot] = field(default_factory=list)
    immutable: bool = False
    away: bool = False  # swapped out, discarded, or empty when it was swapped out


@dataclass(eq=False)
class Lane:
    """A queue, and the pages and embeds that all queues of its instance share."""

    instance: Instance
    queue: int
    pages: dict[int, Page] = field(default_factory=dict)  # by address
    embeds: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    samplers: dict[int, list[Any]] = field(default_factory=dict)  # by handle: sampler, step, top
    expected: dict[int, Any] = field(default_factory=dict)  # distributions by future
    samples: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # token and top by future
    notes: dict[int, tuple[int, list[float]]] = field(default_factory=dict)  # attention by future
    marks: list[int] = field(default_factory=list)

    @property
    def at(self) -> tuple[Instance, int]:
        """The first arguments of its calls."""
        return self.instance, self.queue

    @property
    def resident(self) -> list[int]:
        """Addresses of pages that may be used."""
        return [address for address, page in self.pages.items() if not page.away]

    @property
    def written(self) -> list[int]:
        """Embeds that hold something."""
        return [embed for embed, value in self.embeds.items() if value]


def spans(addresses: list[int]) -> list[int]:
    """Addresses as spans, neighbours joined."""
    out: list[int] = []
    for address in addresses:
        if out and out[-2] + out[-1] == address:
            out[-1] += 1
        else:
            out += [address, 1]
    return out


def runs(visible: list[bool]) -> list[int]:
    """One row of a mask in run-length form."""
    lengths, last = [0], False
    for bit in visible:
        if bit == last:
            lengths[-1] += 1
        else:
            lengths.append(1)
            last = bit
    return [len(lengths), *lengths]


def outcome(call: Any, *args: Any) -> tuple[Any, str | None]:
    """What a call returned, or the code of its error."""
    try:
        return call(*args), None
    except ApiError as error:
        return None, error.code


class Programs(RuleBasedStateMachine):
    @initialize(
        reference=st.sampled_from([False, False, True]),
        tokens=st.sampled_from([6, 24, 1000]),
        commands=st.sampled_from([1, 3, 100]),
        prompt=st.sampled_from([None, 2, 2, 5]),
    )
    def start(self, reference: bool, tokens: int, commands: int, prompt: int | None) -> None:
        most: dict[str, Any] = {"max_batch_tokens": tokens, "max_batch_commands": commands}
        self.server = Server(reference=reference, prompt_tokens=prompt, **most)
        self.prompt = prompt
        self.lanes: list[Lane] = []
        self._turn: Lane | None = None  # the lane whose calls come next, instead of any
        self.freed: set[Instance] = set()  # instances that have freed something since all ran
        self.exports: dict[tuple[str, str], list[Page]] = {}
        self.launch(0, 3)
        self.launch(1, 1)

    # Instances

    @rule(user=st.integers(0, 1), lanes=st.integers(1, 4))
    def launch(self, user: int, lanes: int) -> None:
        if len(self.lanes) > 7:
            return
        instance = self.server.launch(("ann", "ben")[user])
        first = Lane(instance, runtime.create_queue(instance, "symbolic"))
        self.lanes.append(first)
        self._allocate(first, "page", 2)
        self._allocate(first, "embed", 6)
        for _ in range(lanes - 1):
            self._add_queue(first)

    @rule(data=st.data())
    def another_queue(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if len(self.lanes) <= 7:
            self._add_queue(lane)

    def _add_queue(self, lane: Lane) -> None:
        queue = runtime.create_queue(lane.instance, "symbolic")
        self.lanes.append(Lane(lane.instance, queue, lane.pages, lane.embeds, lane.samplers))

    @rule(which=st.integers(0, 10))
    def kill(self, which: int) -> None:
        if len(self.lanes) > 3:
            killed = self.lanes[which % len(self.lanes)].instance
            self.server.registry.kill(killed, "test")
            if (backlog := getattr(self.server.scheduler, "_backlog", None)) is not None:
                heads = backlog.heads.values()  # which the reference does not have
                assert not any(queue.owner is killed for queues in heads for queue in queues)
            self._forget_ended()

    def _forget_ended(self) -> None:
        self.lanes = [lane for lane in self.lanes if lane.instance.ended is None]

    # Calls

    @rule(data=st.data(), what=st.sampled_from(["page", "embed"]), count=st.integers(0, 5))
    def allocate(self, data: st.DataObject, what: str, count: int) -> None:
        self._allocate(self._lane(data), what, count)

    def _allocate(self, lane: Lane, what: str, count: int) -> None:
        call = allocate.alloc_kvpage if what == "page" else allocate.alloc_emb
        first, error = outcome(call, *lane.at, count)
        self._forget_ended()
        assert lane in self.lanes
        if error is None:
            if what == "page":
                lane.pages.update((first + i, Page()) for i in range(count))
            else:
                lane.embeds.update((first + i, None) for i in range(count))
        else:
            assert error == ("out-of-resources" if count else "invalid-argument")

    @rule(data=st.data())
    def embed(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if not lane.embeds:
            return
        targets = self._some(data, list(lane.embeds), 4)
        tokens = data.draw(
            st.lists(st.integers(0, 30), min_size=len(targets), max_size=len(targets))
        )
        positions = [data.draw(st.integers(0, 40)) for _ in targets]
        text.embed_txt(*lane.at, tokens, spans(positions), spans(targets))
        for target, token, position in zip(targets, tokens, positions, strict=True):
            lane.embeds[target] = (embedded(token), position)

    @rule(data=st.data(), moved=st.booleans())
    def copy_embeds(self, data: st.DataObject, moved: bool) -> None:
        lane = self._lane(data)
        if not (written := lane.written):
            return
        targets = self._some(data, list(lane.embeds), 4)
        count = len(targets)
        sources = data.draw(st.lists(st.sampled_from(written), min_size=count, max_size=count))
        places = [data.draw(st.integers(0, 40)) for _ in targets] if moved else []
        lists = (spans(sources), spans(targets), spans(places))
        allocate.copy_emb(*lane.at, *lists)
        old = [lane.embeds[e] for e in sources]
        for i, (target, pair) in enumerate(zip(targets, old, strict=True)):
            assert pair is not None
            lane.embeds[target] = (pair[0], places[i] if moved else pair[1])

    @rule(data=st.data())
    def forward(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if not (written := lane.written):
            return
        inputs = self._some(data, written, 4)
        pages = self._some(data, lane.resident, 3, least=0)
        outputs = self._some(data, list(lane.embeds), len(inputs), least=0)
        same = data.draw(st.booleans())
        receiving = pages if same else self._some(data, lane.resident, 3, least=0)
        columns = [slot for page in pages for slot in lane.pages[page].slots]
        mask: list[int] = []
        if data.draw(st.integers(0, 3)) == 0:
            for _ in inputs:
                width = len(columns) + len(inputs)
                mask += runs(data.draw(st.lists(st.booleans(), min_size=width, max_size=width)))
        lists = (spans(pages), spans(inputs), spans(receiving), spans(outputs), mask)
        how = data.draw(st.sampled_from(["plain", "plain", "x", "y", "observe"]))
        values = [v for v in (lane.embeds[e] for e in inputs) if v]
        if how == "plain":
            answer, error = outcome(forward.forward, *lane.at, *lists)
        elif how == "observe":
            detail = data.draw(st.sampled_from(["total", "layers", "heads"]))
            count = data.draw(st.integers(1, len(inputs)))
            answer, error = outcome(forward_with_attention, *lane.at, *lists, count, detail, "")
            if error is None:
                rows = {"total": 1, "layers": 2, "heads": 6}[detail]
                seen = attention(len(columns) + len(values), count, rows)
                lane.notes[answer] = (rows, seen)
        else:
            answer, error = outcome(adapter.forward_with_adapter, *lane.at, how, *lists)
        if error == "limit-exceeded":  # some of the inputs can only run at once
            assert self.prompt is not None
            assert len(inputs) > self.prompt
            return
        targets: list[Page] = []
        for page in receiving:
            kept = lane.pages[page]
            targets += [kept] * (PAGE - len(kept.slots))
        targets = targets[: len(inputs)]
        if any(page.immutable for page in targets):
            assert error == "immutable"
            return
        if receiving and len(targets) < len(inputs):
            assert error == "page-full"
            return
        assert error is None
        hidden = run_forward(values, columns, mask, {"x": 0, "y": 1}.get(how, -1))
        pairs = [(h, v[1]) for h, v in zip(hidden, values, strict=True)]
        for kept, pair in zip(targets, pairs, strict=False):
            kept.slots.append(Slot(*pair))
        for embed, pair in zip(outputs, pairs[len(pairs) - len(outputs) :], strict=True):
            lane.embeds[embed] = pair

    @rule(data=st.data(), times=st.integers(1, 3))
    def work(self, data: st.DataObject, times: int) -> None:
        """What programs do most, so that there is something in the pages."""
        for _ in range(times):
            self.embed(data)
            self.forward(data)
            self.forward(data)
            self.dist(data, 1200)

    @rule(data=st.data(), times=st.integers(2, 4))
    def work_more(self, data: st.DataObject, times: int) -> None:
        """Again: rules are left out at random, and all are drawn as often."""
        self.work(data, times)

    @rule(data=st.data(), times=st.integers(1, 2))
    def work_of_several_queues(self, data: st.DataObject, times: int) -> None:
        """The queues of one instance in turn, over the same pages and embeds: forks, beams,
        trees.
        """
        for _ in range(times):
            first = self._lane(data)
            for lane in [lane for lane in self.lanes if lane.instance is first.instance]:
                self._turn = lane
                self.embed(data)
                self.forward(data)
                self.dist(data, 1200)
        self._turn = None

    @rule(data=st.data(), start=st.integers(0, 9), to=st.integers(0, 9))
    def copy(self, data: st.DataObject, start: int, to: int) -> None:
        lane = self._lane(data)
        if len(lane.resident) < 2:
            return
        a, b = (data.draw(st.sampled_from(sorted(lane.resident))) for _ in range(2))
        count = data.draw(st.integers(0, PAGE))
        old, new = lane.pages[a], lane.pages[b]
        _, error = outcome(allocate.copy_kvpage, *lane.at, a, start, b, to, count)
        if count == 0 or start + count > len(old.slots) or to > len(new.slots):
            assert error == "invalid-argument"
        elif to + count > PAGE:
            assert error == "page-full"
        elif new.immutable:
            assert error == "immutable"
        else:
            assert error is None
            new.slots[to : to + count] = old.slots[start : start + count]

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """A text goes on in two ways: full pages are shared, the last one is copied, both are
        written.
        """
        lane = self._lane(data)
        full = [a for a in lane.resident if lane.pages[a].slots]
        if not full:
            return
        last = data.draw(st.sampled_from(full))
        known = set(lane.pages)
        self._allocate(lane, "page", 1)
        for copy in set(lane.pages) - known:
            count = len(lane.pages[last].slots)
            allocate.copy_kvpage(*lane.at, last, 0, copy, 0, count)
            lane.pages[copy].slots = list(lane.pages[last].slots)
            self.forward(data)

    @rule(data=st.data())
    def mask(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if not lane.resident:
            return
        pages = self._some(data, lane.resident, 3)
        words = [
            data.draw(st.integers(0, (1 << len(lane.pages[page].slots)) - 1)) for page in pages
        ]
        wrong = data.draw(st.integers(0, 9)) == 0 and len(lane.pages[pages[0]].slots) < PAGE
        if wrong:
            words[0] |= 1 << PAGE - 1
        _, error = outcome(forward.mask_kvpage, *lane.at, spans(pages), np.array(words, np.uint32))
        if any(lane.pages[page].immutable for page in pages):
            assert error == "immutable"
        elif wrong:
            assert error == "invalid-argument"
        else:
            assert error is None
            for page, word in zip(pages, words, strict=True):
                kept = lane.pages[page]
                kept.slots = [
                    replace(slot, masked=bool(word >> i & 1)) for i, slot in enumerate(kept.slots)
                ]

    @rule(data=st.data(), k=st.integers(1, 1200))
    def dist(self, data: st.DataObject, k: int) -> None:
        lane = self._lane(data)
        if not (written := lane.written):
            return
        embed = data.draw(st.sampled_from(written))
        future = text.get_next_dist(*lane.at, embed, k)
        value = lane.embeds[embed]
        assert value is not None
        vocab = self.server.facts.vocab_size
        lane.expected[future] = distribution(value[0], min(k, vocab), vocab)

    @rule(data=st.data(), used=st.lists(st.integers(0, PAGE), min_size=3, max_size=3))
    def truncate(self, data: st.DataObject, used: list[int]) -> None:
        lane = self._lane(data)
        if not lane.resident:
            return
        pages = self._some(data, lane.resident, 3)
        counts = np.array(used[: len(pages)], np.uint32)
        _, error = outcome(allocate.truncate_kvpage, *lane.at, spans(pages), counts)
        kept = [lane.pages[page] for page in pages]
        if any(page.immutable for page in kept):
            assert error == "immutable"
        elif any(u > len(page.slots) for u, page in zip(used, kept, strict=False)):
            assert error == "invalid-argument"
        else:
            assert error is None
            for u, page in zip(used, kept, strict=False):
                del page.slots[u:]

    # Offload

    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if not lane.pages:
            return
        pages = self._some(data, list(lane.pages), 4)
        kept = [lane.pages[page] for page in pages]
        here = [page for page in kept if not page.away]
        free = self.server.service.host_pages.free
        _, error = outcome(offload.swap_out, *lane.at, spans(pages))
        shared = any(self._holders(page) > 1 for page in here)
        if error == "busy":  # perhaps of a page that has been freed, but not all sent that names it
            assert shared or self.freed
        elif sum(bool(page.slots) for page in here) > free:
            assert error == "out-of-resources"
        else:
            assert error is None
            assert not shared
            for page in here:
                page.away = True
                page.immutable &= bool(page.slots)

    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if not lane.pages:
            return
        pages = self._some(data, list(lane.pages), 4)
        _, error = outcome(offload.swap_in, *lane.at, spans(pages))
        self._forget_ended()
        if error is None:
            for page in pages:
                lane.pages[page].away = False
        else:
            assert error == "out-of-resources"

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if not lane.pages:
            return
        pages = self._some(data, list(lane.pages), 2)
        offload.discard(*lane.at, spans(pages))
        self.freed.add(lane.instance)
        for page in pages:
            lane.pages[page] = Page(away=True)  # others who hold it keep it

    @rule(data=st.data(), call=st.integers(0, 4))
    def use_what_is_away(self, data: st.DataObject, call: int) -> None:
        lane = self._lane(data)
        away = [a for a, page in lane.pages.items() if page.away]
        if not away:
            return
        page = data.draw(st.sampled_from(away))
        none = np.zeros(1, np.uint32)
        calls: list[Any] = [
            lambda: forward.mask_kvpage(*lane.at, [page, 1], none),
            lambda: allocate.truncate_kvpage(*lane.at, [page, 1], none),
            lambda: allocate.export_kvpage(*lane.at, [page, 1], "away", False),
            lambda: allocate.copy_kvpage(*lane.at, page, 0, page, 0, 1),
        ]
        if call == len(calls):
            if not lane.written:
                return
            one = spans(lane.written[:1])
            calls.append(lambda: forward.forward(*lane.at, [page, 1], one, [], [], []))
        assert outcome(calls[call])[1] == "swapped-out"

    def _holders(self, page: Page) -> int:
        """How many addresses and exports stand for a page."""
        spaces = {id(lane.pages): lane.pages for lane in self.lanes}
        held = sum(page is other for pages in spaces.values() for other in pages.values())
        return held + sum(page is other for pages in self.exports.values() for other in pages)

    # Samplers

    @rule(
        data=st.data(),
        seed=st.integers(0, 2**64 - 1),
        presence=st.sampled_from([0, 0, 0.5]),
        top=st.integers(0, 3),
        bias=st.dictionaries(st.integers(0, 999), st.sampled_from([-1.0, 2.5]), max_size=2),
    )
    def create_sampler(
        self,
        data: st.DataObject,
        presence: float,
        bias: dict[int, float],
        seed: int = 5,
        top: int = 1,
    ) -> None:
        lane = self._lane(data)
        made = inferlet.Sampler(seed=seed, presence_penalty=presence, logprobs=top, logit_bias=bias)
        pool, vocab = self.server.service.samplers, self.server.facts.vocab_size
        full = not pool.slots.free or (presence != 0 and not pool.rows.free)
        handle, error = outcome(create_sampler, *lane.at, made.to_json())
        assert error == ("out-of-resources" if full else None)
        if error is None:
            facts = (seed, program_facts(bound_by(made, vocab)))
            lane.samplers[handle] = [Sampler(facts, presence != 0), 0, top]

    @rule(data=st.data())
    def destroy_sampler(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        if lane.samplers:
            gone = data.draw(st.sampled_from(sorted(lane.samplers)))
            del lane.samplers[gone]
            sample.destroy_sampler(*lane.at, gone)
            again = outcome(sample.destroy_sampler, *lane.at, gone)
            assert again[1] == "invalid-handle"

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 999), max_size=4), own=st.booleans())
    def feed_sampler(self, data: st.DataObject, tokens: list[int], own: bool) -> None:
        lane = self._lane(data)
        if lane.samplers:
            handle = data.draw(st.sampled_from(sorted(lane.samplers)))
            sample.feed_sampler(*lane.at, handle, tokens, own)
            lane.samplers[handle][0].feed(tokens, own)

    @rule(data=st.data(), allowed=st.none() | st.sets(st.integers(0, 999), min_size=1, max_size=9))
    def sample(self, data: st.DataObject, allowed: set[int] | None) -> None:
        lane = self._lane(data)
        if not (written := lane.written) or not lane.samplers:
            return
        embed = data.draw(st.sampled_from(written))
        handle = data.draw(st.sampled_from(sorted(lane.samplers)))
        vocab = self.server.facts.vocab_size
        sampler, step, top = lane.samplers[handle]
        words = np.zeros(-(-vocab // 32), np.uint32)
        for token in allowed or ():
            words[token // 32] |= np.uint32(1 << token % 32)
        if allowed is None:
            future = sample.sample(*lane.at, embed, handle)
            mask: tuple[int, ...] = ()
        else:
            future = sample.sample_masked(*lane.at, embed, handle, words)
            mask = tuple(words.tolist())
        pair = lane.embeds[embed]
        assert pair is not None
        token = sampler.choose(pair[0], step, mask, vocab)
        lane.samplers[handle][1] += 1
        lane.samples[future] = (token, [(abs(pair[0]) + i) % vocab for i in range(top)])

    @rule(data=st.data(), position=st.integers(0, 40))
    def embed_sampled(self, data: st.DataObject, position: int) -> None:
        lane = self._lane(data)
        if not lane.samplers or not lane.embeds:
            return
        handle = data.draw(st.sampled_from(sorted(lane.samplers)))
        embed = data.draw(st.sampled_from(sorted(lane.embeds)))
        sampler, step, _ = lane.samplers[handle]
        _, error = outcome(sample.embed_sampled, *lane.at, handle, position, embed)
        assert error == (None if step else "invalid-argument")
        if error is None:
            lane.embeds[embed] = (embedded(sampler.last), position)

    @rule(data=st.data(), presence=st.sampled_from([0.0, 0.5]), times=st.integers(1, 3))
    def generate(self, data: st.DataObject, presence: float, times: int) -> None:
        """What samplers are for: choices that depend on what was chosen and fed before."""
        self._turn = self._lane(data)
        if self._turn.embeds:
            self.embed(data)
            self.create_sampler(data, presence, {7: 2.5})
            for place in range(times):
                self.feed_sampler(data, [place], data.draw(st.booleans()))
                self.sample(data, None)
                self.embed_sampled(data, place)
        self._turn = None

    @rule(data=st.data(), what=st.sampled_from(["expected", "samples"]))
    def cancel(self, data: st.DataObject, what: str) -> None:
        lane = self._lane(data)
        futures: dict[int, Any] = getattr(lane, what)
        if futures:
            future = data.draw(st.sampled_from(sorted(futures)))
            del futures[future]  # a sampler has moved on all the same
            runtime.cancel(lane.instance, future)

    @rule(data=st.data(), priority=st.integers(-2, 2))
    def prioritise(self, data: st.DataObject, priority: int) -> None:
        runtime.set_queue_priority(*self._lane(data).at, priority)

    @rule(data=st.data())
    def synchronize(self, data: st.DataObject) -> None:
        lane = self._lane(data)
        lane.marks.append(runtime.synchronize(*lane.at))

    @rule(data=st.data(), what=st.sampled_from(["page", "embed"]))
    def deallocate(self, data: st.DataObject, what: str) -> None:
        lane = self._lane(data)
        held: dict[int, Any] = getattr(lane, what + "s")
        if len(held) < 4:
            return
        gone = self._some(data, list(held), 2)
        call = allocate.dealloc_kvpage if what == "page" else allocate.dealloc_emb
        call(*lane.at, spans(gone))
        self.freed.add(lane.instance)
        for address in gone:
            del held[address]
        assert outcome(call, *lane.at, spans(gone))[1] == "invalid-handle"

    @rule(data=st.data(), name=st.sampled_from("xyz"), shared=st.booleans())
    def export(self, data: st.DataObject, name: str, shared: bool) -> None:
        lane = self._lane(data)
        if not lane.resident:
            return
        pages = self._some(data, lane.resident, 2)
        kept = [lane.pages[page] for page in pages]
        _, error = outcome(allocate.export_kvpage, *lane.at, spans(pages), name, shared)
        space = "" if shared else lane.instance.user
        if (space, name) in self.exports:
            assert error == "already-exists"
        elif len(set(map(id, kept))) < len(kept):  # two addresses of one page
            assert error == "invalid-argument"
        elif error is None:
            self.exports[space, name] = kept
            for page in kept:
                page.immutable = True
        else:
            assert error in ("busy", "limit-exceeded")

    @rule(data=st.data(), name=st.sampled_from("xyz"))
    def import_(self, data: st.DataObject, name: str) -> None:
        lane = self._lane(data)
        found = self.exports.get((lane.instance.user, name)) or self.exports.get(("", name))
        mapped, error = outcome(allocate.import_kvpage, *lane.at, name)
        if found is None:
            assert error == "not-found"
        else:
            first, count = mapped
            assert count == len(found)
            lane.pages.update(zip(range(first, first + count), found, strict=True))

    @rule(data=st.data(), name=st.sampled_from("xyz"))
    def release(self, data: st.DataObject, name: str) -> None:
        lane = self._lane(data)
        _, error = outcome(allocate.release_export, *lane.at, name)
        if error is None:
            own = (lane.instance.user, name)
            del self.exports[own if own in self.exports else ("", name)]
        else:
            assert error == ("permission-denied" if ("", name) in self.exports else "not-found")

    # The worker

    @precondition(lambda self: len(self.server.results) < 2)
    @rule()
    def send(self) -> None:
        self.server.send()

    @precondition(lambda self: self.server.results)
    @rule()
    def deliver(self) -> None:
        self.server.deliver()

    @precondition(lambda self: self.server.results)
    @rule(count=st.integers(0, 5))
    def deliver_part(self, count: int) -> None:
        """The worker tells what is ready before the rest."""
        self.server.deliver_part(count)

    @rule()
    def settle(self) -> None:
        """Runs all there is, and looks at everything."""
        self.server.drain()
        facts, service = self.server.facts, self.server.service
        self.freed.clear()
        for lane in self.lanes:
            for future, expected in lane.expected.items():
                tokens, probabilities = take(lane.instance, future)
                assert tokens.tolist() == expected
                assert len(probabilities) == len(expected)
            lane.expected.clear()
            for future, (token, top) in lane.samples.items():
                found, _, tops, logs = take(lane.instance, future)
                assert (found, tops.tolist()) == (token, top)
                assert len(logs) == len(top)
            lane.samples.clear()
            for future, note in lane.notes.items():
                rows, numbers = take(lane.instance, future)
                assert (rows, numbers.tolist()) == note
            lane.notes.clear()
            for mark in lane.marks:
                take(lane.instance, mark)
            lane.marks.clear()
            assert lane.instance.queued_commands == 0
        everything = {id(page): page for lane in self.lanes for page in lane.pages.values()}
        everything |= {id(page): page for pages in self.exports.values() for page in pages}
        here = sum(not page.away for page in everything.values())
        assert service.pages.free == facts.kv_pages - here
        swapped = sum(page.away and bool(page.slots) for page in everything.values())
        assert service.host_pages.free == facts.host_pages - swapped
        spaces = {lane.instance: lane.pages for lane in self.lanes}
        for instance, pages in spaces.items():
            space = service.spaces[instance]
            assert space.pages.resident == sum(not page.away for page in pages.values())
            assert space.pages_held == space.pages.resident
        samplers = {lane.instance: len(lane.samplers) for lane in self.lanes}
        assert service.samplers.slots.free == facts.samplers - sum(samplers.values())
        embeds = {lane.instance: len(lane.embeds) for lane in self.lanes}
        assert service.embeds.free == facts.embeds - sum(embeds.values())
        for kind, commands, rows in self.server.worker.sizes:
            assert commands <= facts.max_batch_commands
            assert (
                kind not in ("embed_text", "copy_embed", "forward")
                or rows <= facts.max_batch_tokens
            )
        self.server.worker.sizes.clear()

    @invariant()
    def fill_counts_agree(self) -> None:
        for lane in getattr(self, "lanes", []):
            used = allocate.kvpage_used(lane.instance, lane.queue, spans(list(lane.pages)))
            assert used.tolist() == [len(page.slots) for page in lane.pages.values()]

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.settle()
        self.server.registry.end_all("the test is over")
        exports = self.server.service.exports
        for user in ("ann", "ben"):
            for name in exports.names(user):
                outcome(exports.release, user, name)
                outcome(exports.release, user, name)  # a private one hides a shared one
        stats = self.server.service.stats()
        assert stats["exports"] == stats["exported_pages"] == stats["queues"] == 0
        assert stats["kv_pages_free"] == self.server.facts.kv_pages
        assert stats["host_pages_free"] == self.server.facts.host_pages
        assert stats["embeds_free"] == self.server.facts.embeds
        assert stats["samplers_free"] == self.server.facts.samplers
        assert self.server.service.samplers.rows.free == self.server.facts.count_rows
        assert self.server.service.pages.masked == 0

    # Choices

    def _lane(self, data: st.DataObject) -> Lane:
        if self._turn is not None:
            return self._turn
        if not self.lanes:
            self.launch(0, 1)
        return self.lanes[data.draw(st.integers(0, len(self.lanes) - 1))]

    def _some(self, data: st.DataObject, values: list[int], most: int, least: int = 1) -> list[int]:
        """A few different values in some order."""
        if not values:
            return []
        return data.draw(
            st.lists(
                st.sampled_from(values),
                min_size=least,
                max_size=max(least, min(most, len(values))),
                unique=True,
            )
        )


Programs.TestCase.settings = settings(
    max_examples=70, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestPrograms = Programs.TestCase
