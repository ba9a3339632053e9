"""The provenance of pages: which tokens they hold, as far as the server has seen them written.

The prefix cache believes nothing else. A program is never asked which tokens its pages hold: it
could lie, and other programs would read its answer as their text. The scheduler shows `Provenance`
every command that it queues (`Command.trace`), and the space of what changes pages without a
command: truncated and freed ones.

A *record* follows one text through pages. It grows only by a forward that could not have written
anything but the keys and values of the next tokens, computed from all tokens before. Anything else
that happens to a page changes the page's stamp in the pool, or fills slots that the record never
counts; either way the record stops to be evidence for that page. A kind of command that says
nothing of its own does so too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pie_control.errors import ApiError
from pie_py.wire.plan import Int32

if TYPE_CHECKING:
    from pie_control.prefix.tree import Pending
    from pie_control.resources.pools import PagePool

UNKNOWN = -1


class Writer(Protocol):
    """A queue, as provenance sees it."""

    failure: ApiError | None  # why its commands fail at present
    failures: int  # commands of it that have failed
    branch: Branch | None
    id: int  # of no other one


class Traced(Protocol):
    """The queues of one instance, whose commands its provenance records once there is one."""

    provenance: Provenance | None


class Extension(Protocol):
    """A forward that appends to the text in its pages, as provenance sees it."""

    inputs: list[int]  # [n] embeds
    pages: Int32  # [p] filled ones that it attends to
    page_used: Int32  # [p] filled slots of each
    output_slots: list[int] | None  # [n] KV slots that it fills
    output_pages: list[int]  # [q] of these slots
    adapter: int  # slot


class Chosen:
    """A token that a sampler is to choose, known once it has."""

    __slots__ = ("_then", "token")

    def __init__(self, then: Callable[[int | None], None] | None) -> None:
        """Takes what else gets the token."""
        self.token = UNKNOWN
        self._then = then

    def learn(self, token: int | None) -> None:
        """Takes the token, or None for none, and passes it on."""
        if token is not None:
            self.token = token
        if self._then is not None:
            self._then(token)


@dataclass(slots=True)
class _Embedded:
    """The content of the newest written embeds: tokens at successive positions."""

    queue: Writer
    failures: int  # of the queue then
    embeds: list[int]  # [n]
    start: int  # position of the first
    tokens: list[int]  # [n]
    epoch: int  # of the weights
    chosen: Chosen | None = None  # instead of tokens: the one that a sampler is to choose


class Record:
    """One text in one instance's pages: token `i` lies in slot `i % page_size` of page `i //
    page_size`.

    Everything is as if all queued commands had run, but `done`.
    """

    def __init__(self, adapter: int, epoch: int) -> None:
        self.adapter = adapter  # slot of the adapter that all of it went through
        self.epoch = epoch  # of the weights when it began
        self.length = 0
        self.tokens = array("i")  # [length]; 0 where a token was not known
        self.chosen: dict[int, Chosen] = {}  # those, by their places
        self.pages: list[int] = []
        self.raw = b""  # the same pages, as the bytes of an int32 array
        self.stamps: list[int] = []  # of the pages, when they joined
        self.done = 0  # tokens whose keys and values are known to be there
        self.broken = False  # a command failed or was dropped: nothing of it may be believed
        # Queues that wrote it, with the number of their failures then: one more breaks the record.
        self.origins: dict[Writer, int] = {}
        self.marks: list[PageMark] = []  # on their way through queues and worker
        self.waiting: list[Pending] = []

    def known(self, most: int) -> int:
        """How many of the first `most` tokens are known without a gap."""
        for place in sorted(place for place in self.chosen if place < most):
            token = self.chosen[place].token
            if token == UNKNOWN:
                return place
            self.tokens[place] = token
            del self.chosen[place]
        return most

    def is_sound(self) -> bool:
        """True if no queue that wrote it has had a failure since."""
        if not self.broken and any(queue.failures != n for queue, n in self.origins.items()):
            self.broken = True
        return not self.broken

    def add_pages(self, pages: Sequence[int], pool: PagePool) -> None:
        """Appends pages that are about to be filled."""
        self.pages += pages
        self.raw += np.array(pages, np.int32).tobytes()
        self.stamps += map(pool.stamps.item, pages)

    def cut(self, length: int, page_size: int) -> None:
        """Forgets the tokens from `length` on."""
        keep = -(-length // page_size)
        del self.tokens[length:], self.pages[keep:], self.stamps[keep:]
        self.raw = self.raw[: 4 * keep]
        self.chosen = {place: chosen for place, chosen in self.chosen.items() if place < length}
        self.length = length
        self.done = min(self.done, length)
        for mark in self.marks:
            mark.length = min(mark.length, length)

    def branch(self, length: int, page_size: int) -> Record:
        """Another text with the same first tokens, in the same pages."""
        other = Record(self.adapter, self.epoch)
        keep = -(-length // page_size)
        other.length = length
        other.tokens = self.tokens[:length]
        other.chosen = {place: chosen for place, chosen in self.chosen.items() if place < length}
        other.pages, other.stamps = self.pages[:keep], self.stamps[:keep]
        other.raw = self.raw[: 4 * keep]
        other.done = min(self.done, length)
        other.origins = dict(self.origins)
        other.broken = self.broken
        return other


class PageMark:
    """Stands in a queue behind a forward that filled a page, and notes when that is done."""

    __slots__ = ("_settle", "length", "record")

    def __init__(self, settle: Callable[[Record], None], record: Record) -> None:
        self._settle = settle
        self.record = record
        self.length = record.length

    def passed(self) -> None:
        """All before it in its queue has taken effect, or failed."""
        record = self.record
        record.marks.remove(self)
        if record.is_sound():
            record.done = max(record.done, self.length)
        if record.waiting:
            self._settle(record)

    def dropped(self) -> None:
        """Its forward will never run."""
        self.record.marks.remove(self)
        self.record.broken = True
        if self.record.waiting:
            self._settle(self.record)


class Branch:
    """The text that a queue has run last, and where it began: for people, who look at forks."""

    __slots__ = ("begins", "length", "parent", "record")

    def __init__(self, queue: Writer, record: Record, begins: int) -> None:
        self.record, self.begins, self.length = record, begins, record.length
        before = [w for w in record.origins if w is not queue and w.branch is not None]
        wrote = [w.id for w in before if w.branch is not None and w.branch.begins < begins]
        self.parent = wrote[-1] if wrote else None  # id of the queue that wrote what is before

    def go_on(self, record: Record) -> None:
        """Its queue has appended to a record."""
        self.record, self.length = record, record.length

    @property
    def tokens(self) -> array[int]:
        """All, with those before its own, as far as they are known."""
        return self.record.tokens[: self.record.known(min(self.length, self.record.length))]


class Provenance:
    """The contents of one instance's pages of one model.

    Commands report what they write in the order in which they are queued, so each method speaks of
    a command that has just been queued, whether it has run or not.
    """

    def __init__(self, pool: PagePool, embeds: int, settle: Callable[[Record], None]) -> None:
        """Takes the pool of the pages, how many embeds the model has, and what is called when a
        record that pages wait for has got further.
        """
        self._pool = pool
        self._embeds = embeds  # names from here on are samplers'
        self._settle = settle
        self._size = pool.page_size
        self._of: dict[int, Record] = {}  # by physical page; one that several share has the newest
        self._embedded: _Embedded | None = None  # None if the newest embeds hold no text
        self._choices: dict[int, Chosen] = {}  # the last token of each sampler, by slot

    def find(self, pages: Int32) -> tuple[Record, int] | None:
        """The record of a list of pages, and how many of the first ones are its own."""
        numbers = pages.tolist()
        for count in range(len(numbers), 0, -1):
            record = self._of.get(numbers[count - 1])
            if record is not None and record.raw.startswith(pages[:count].tobytes()):
                return record, count
        return None

    def follow(self, pages: Int32, tokens: bytes, adapter: int) -> None:
        """Begins a record with full pages that the cache has given."""
        record = Record(adapter, self._pool.epoch)
        record.length = record.done = len(pages) * self._size
        record.tokens.frombytes(tokens[: record.length * record.tokens.itemsize])
        numbers = pages.tolist()
        record.add_pages(numbers, self._pool)
        self._of.update(dict.fromkeys(numbers, record))

    # What the space does without a command

    def forget(self, pages: Int32) -> None:
        """The instance holds these pages no longer."""
        if self._of:
            for page in pages.tolist():
                self._of.pop(page, None)

    def truncated(self, pages: Int32, used: list[int], old_stamps: list[int]) -> None:
        """Pages were cut to fewer slots, which has changed their stamps."""
        for page, count, stamp in zip(pages.tolist(), used, old_stamps, strict=True):
            record = self._of.get(page)
            if record is None or page not in record.pages:
                continue
            at = record.pages.index(page)
            if stamp != record.stamps[at]:
                continue
            length = at * self._size + count
            if count < min(self._size, record.length - at * self._size):
                for gone in record.pages[-(-length // self._size) :]:
                    if self._of.get(gone) is record:
                        del self._of[gone]
                record.cut(length, self._size)
            if at < len(record.stamps):
                record.stamps[at] = self._pool.stamps.item(page)

    # What commands write

    def overwritten(self, pages: Sequence[int], embeds: Sequence[int]) -> None:
        """A command writes something unknown to pages and embeds: they hold no text any more."""
        if any(embed < self._embeds for embed in embeds):
            self._embedded = None
        for page in pages:
            if page < self._pool.size:  # names after that are host pages'
                self._pool.stamps[page] += 1
                self._of.pop(page, None)

    def embeds_changed(self) -> None:
        """A command writes something unknown to embeds."""
        self._embedded = None

    def embedded(
        self, queue: Writer, embeds: list[int], positions: list[int], tokens: list[int]
    ) -> None:
        """A command embeds tokens `[n]` at positions `[n]`."""
        start, count = positions[0], len(positions)
        if queue.failure is not None or (  # with a failure, it has been dropped
            count > 1 and positions != list(range(start, start + count))
        ):
            self._embedded = None
        else:
            epoch = self._pool.epoch
            self._embedded = _Embedded(queue, queue.failures, embeds, start, tokens, epoch)

    def chosen(
        self, sampler: int, then: Callable[[int | None], None] | None
    ) -> Callable[[int | None], None]:
        """A command has the sampler of a slot choose its next token, which `then` gets, too.
        Returns what is to be called with the token, or with None if there is none.
        """
        choice = self._choices[sampler] = Chosen(then)
        return choice.learn

    def made(self, sampler: int) -> None:
        """A command makes a sampler in a slot: it has not chosen a token yet."""
        self._choices.pop(sampler, None)

    def embedded_choice(self, queue: Writer, embed: int, position: int, sampler: int) -> None:
        """A command embeds the last token of a sampler, by its slot."""
        choice = self._choices.get(sampler)
        if choice is None or queue.failure is not None:
            self._embedded = None
        else:
            self._embedded = _Embedded(
                queue, queue.failures, [embed], position, [0], self._pool.epoch, choice
            )

    def extended(self, queue: Writer, forward: Extension) -> PageMark | None:
        """A forward without mask or masked slots fills slots. Returns a mark to set behind it, if
        it fills a page of a known text.
        """
        embedded, self._embedded = self._embedded, None  # its outputs may overwrite the embeds
        if (
            embedded is None
            or embedded.queue is not queue
            or embedded.embeds != forward.inputs
            or queue.failure is not None
            or queue.failures != embedded.failures
            or embedded.epoch != self._pool.epoch
        ):
            return None
        record = self._before(forward.pages, forward.page_used, forward.adapter, embedded.start)
        if record is None or not self._fits(record, forward):
            return None
        if record.origins.setdefault(queue, queue.failures) != queue.failures:
            record.broken = True
            return None
        size = self._size
        old = record.length
        if embedded.chosen is not None:
            record.chosen[old] = embedded.chosen
        record.tokens.extend(embedded.tokens)
        record.length = old + len(embedded.tokens)
        if queue.branch is None:
            queue.branch = Branch(queue, record, old)
        else:
            queue.branch.go_on(record)
        fresh = forward.output_pages[1:] if old % size else forward.output_pages
        if fresh:
            record.add_pages(fresh, self._pool)
            self._of.update(dict.fromkeys(fresh, record))
        if record.length // size == old // size:
            return None
        mark = PageMark(self._settle, record)
        record.marks.append(mark)
        return mark

    def copied(self, queue: Writer, source: int, target: int, count: int) -> None:
        """A page's first slots are copied to an empty page."""
        record = self._of.get(source)
        if record is None or queue.failure is not None:
            return
        at = record.pages.index(source)
        length = at * self._size + count
        if length > record.length or self._pool.masks[source] or not record.is_sound():
            return
        if self._pool.stamps[source] != record.stamps[at]:
            return
        other = record.branch(length, self._size)
        del other.pages[at:], other.stamps[at:]
        other.raw = other.raw[: 4 * at]
        other.done = min(other.done, at * self._size)
        other.add_pages([target], self._pool)
        if other.origins.setdefault(queue, queue.failures) == queue.failures:
            self._of[target] = other

    def before_run(
        self, queue: Writer, pages: Int32, page_used: Int32, start: int, adapter: int
    ) -> Record | None:
        """A record of its own for a run, which begins with what its pages hold, `start` tokens.

        Nothing else writes to the pages that a run fills. The others may change before its end, so
        it has a copy of the record, with their stamps.
        """
        record = self._before(pages, page_used, adapter, start)
        if record is None or queue.failure is not None or not record.is_sound():
            return None
        own = record.branch(start, self._size)
        if own.origins.setdefault(queue, queue.failures) != queue.failures:
            return None
        if queue.branch is None:
            queue.branch = Branch(queue, own, start)
        else:
            queue.branch.go_on(own)
        return own

    def ran(self, record: Record, pages: list[int], tokens: array[int]) -> None:
        """A run that has ended has appended tokens that stay to its record, from `before_run`. The
        pages are those of all its text, in order, and possibly more.
        """
        size = self._size
        if (
            not record.is_sound()
            or (self._pool.stamps[record.pages] != np.array(record.stamps, np.int64)).any()
        ):
            return
        first = record.length // size  # page that changes
        record.tokens.extend(tokens)
        record.length += len(tokens)
        count = -(-record.length // size)
        record.add_pages(pages[len(record.pages) : count], self._pool)
        record.done = record.length  # the tokens have come, so all before them has run
        self._of.update(dict.fromkeys(record.pages[first:], record))

    def _before(self, pages: Int32, page_used: Int32, adapter: int, start: int) -> Record | None:
        """The record of just what a forward attends to, `start` tokens, or None."""
        size = self._size
        count = len(pages)
        if count == 0:
            return Record(adapter, self._pool.epoch) if start == 0 else None
        record = self._of.get(pages.item(count - 1))
        if record is None or record.adapter != adapter:
            return None
        if start != (count - 1) * size + page_used.item(count - 1):
            return None
        raw = pages.tobytes()
        if record.raw != raw:  # another text that begins with the same full pages
            if start % size or not record.raw.startswith(raw):
                return None
            return record.branch(start, size)
        return record if record.length == start else None

    def _fits(self, record: Record, forward: Extension) -> bool:
        """True if a forward's slots are the ones after a record's last."""
        size = self._size
        slots, pages = forward.output_slots, forward.output_pages
        assert slots is not None
        gap = -record.length % size
        if gap and pages[0] != record.pages[-1]:
            return False
        if gap >= len(slots):  # the hot path
            return True
        return all(slots[i] % size == 0 for i in range(gap, len(slots), size))
