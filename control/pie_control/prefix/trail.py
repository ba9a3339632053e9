"""What an instance's pages hold, as far as the server has seen it written: the cache's evidence.

A guest is never asked which tokens its pages hold: it could lie, and what it says would be other
programs' text. The server sees every command that writes a page. A *trail* follows one text through
them: it grows only by a forward that could not have written anything but the keys and values of the
next tokens, computed from all tokens before. Whatever else happens to a page, the trail either never
learns that the page has grown, or finds that the page's stamp has changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pie_control.scheduler.command import (
    EmbedSampledCommand,
    EmbedTextCommand,
    ForwardCommand,
    Mark,
)

if TYPE_CHECKING:
    from pie_control.prefix.cache import PrefixCache
    from pie_control.prefix.tree import Pending
    from pie_control.resources.pools import PagePool
    from pie_control.scheduler.queue import CommandQueue
    from pie_py.wire.plan import Int32

UNKNOWN = -1


class Chosen:
    """A token that a sampler is to choose, known once it has."""

    __slots__ = ("_then", "token")

    def __init__(self, then: Callable[[int | None], None] | None) -> None:
        """Takes who else wants to be told."""
        self.token = UNKNOWN
        self._then = then

    def told(self, token: int | None) -> None:
        """Takes the token, or None for none, and passes it on."""
        if token is not None:
            self.token = token
        if self._then is not None:
            self._then(token)


class Trail:
    """One text in one instance's pages: token `i` lies in slot `i % page_size` of page `i // page_size`.

    Everything is as if all queued commands had run, but `done`.
    """

    __slots__ = (
        "adapter",
        "broken",
        "chosen",
        "done",
        "length",
        "marks",
        "origins",
        "pages",
        "raw",
        "stamps",
        "tokens",
        "waiting",
    )

    def __init__(self, adapter: int) -> None:
        self.adapter = adapter  # slot of the adapter that all of it went through
        self.length = 0
        self.tokens = array("i")  # [length]; 0 where a token was not known
        self.chosen: dict[int, Chosen] = {}  # those, by their places
        self.pages: list[int] = []
        self.raw = b""  # the same pages, as the bytes of an int32 array
        self.stamps: list[int] = []  # of the pages, when they joined
        self.done = 0  # tokens whose keys and values are known to be there
        self.broken = False  # a command failed or was dropped: nothing of it may be believed
        # Queues that wrote it, with the number of their failures then: one more breaks the trail.
        self.origins: dict[CommandQueue, int] = {}
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
        """Whether no queue that wrote it has had a failure since."""
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

    def branch(self, length: int, page_size: int) -> Trail:
        """Another text with the same first tokens, in the same pages."""
        other = Trail(self.adapter)
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


class PageMark(Mark):
    """Goes through a queue behind a forward that filled a page, and tells when that is done."""

    __slots__ = ("_cache", "_queue", "length", "trail")

    def __init__(self, cache: PrefixCache, trail: Trail, queue: CommandQueue) -> None:
        self._cache = cache
        self._queue = queue
        self.trail = trail
        self.length = trail.length

    def passed(self) -> None:
        """All before it in its queue has taken effect, or failed."""
        trail = self.trail
        trail.marks.remove(self)
        if trail.is_sound():
            trail.done = max(trail.done, self.length)
        if trail.waiting:
            self._cache.settle(trail)

    def dropped(self) -> None:
        """What is before it will never run."""
        self.trail.marks.remove(self)
        self.trail.broken = True
        if self.trail.waiting:
            self._cache.settle(self.trail)


class Trails:
    """The trails of one instance's pages of one model.

    Whoever writes embeds calls `embedded`: no forward may be taken for one of tokens that are not in
    its inputs any more.
    """

    def __init__(self, pool: PagePool, cache: PrefixCache) -> None:
        self._pool = pool
        self._cache = cache
        self._size = pool.page_size
        self._of: dict[int, Trail] = {}  # by physical page; one that several share has the newest
        # The newest command that wrote embeds, unless that is no text; what it embeds if that is a
        # sampler's choice; and the failures of its queue then.
        self._embedded: EmbedTextCommand | EmbedSampledCommand | None = None
        self._chosen: Chosen | None = None
        self._failures = 0

    def find(self, pages: Int32) -> tuple[Trail, int] | None:
        """The trail of a list of pages, and how many of the first ones are its own."""
        numbers = pages.tolist()
        for count in range(len(numbers), 0, -1):
            trail = self._of.get(numbers[count - 1])
            if trail is not None and trail.raw.startswith(pages[:count].tobytes()):
                return trail, count
        return None

    def follow(self, pages: Int32, tokens: bytes, adapter: int) -> None:
        """Begins a trail with full pages that the cache has given."""
        trail = Trail(adapter)
        trail.length = trail.done = len(pages) * self._size
        trail.tokens.frombytes(tokens[: trail.length * trail.tokens.itemsize])
        numbers = pages.tolist()
        trail.add_pages(numbers, self._pool)
        self._of.update(dict.fromkeys(numbers, trail))

    def forget(self, pages: Int32) -> None:
        """The instance holds these pages no longer."""
        if self._of:
            for page in pages.tolist():
                self._of.pop(page, None)

    def embedded(
        self, command: EmbedTextCommand | EmbedSampledCommand | None, chosen: Chosen | None = None
    ) -> None:
        """Takes note of a command that has just been queued and writes embeds; None is no text.

        Args:
            command: what embeds tokens.
            chosen: what `EmbedSampledCommand` embeds.
        """
        self._embedded = command
        self._chosen = chosen
        if command is not None:
            if command.queue.failure is not None:  # it has been dropped
                self._embedded = None
            self._failures = command.queue.failures

    def forward(self, queue: CommandQueue, command: ForwardCommand) -> None:
        """Takes note of a forward that has just been queued."""
        embedded, self._embedded = self._embedded, None  # its outputs may overwrite the embeds
        if (
            command.output_slots is None
            or command.mask is not None
            or command.has_masked
            or command.observation is not None
            or embedded is None
            or embedded.queue is not queue
            or queue.failure is not None
            or queue.failures != self._failures
        ):
            return
        if isinstance(embedded, EmbedSampledCommand):
            if command.inputs != [embedded.embed]:
                return
            start = embedded.position
        else:
            if command.inputs != embedded.embeds:
                return
            start = embedded.positions[0]
            count = len(embedded.positions)
            if count > 1 and embedded.positions != list(range(start, start + count)):
                return
        trail = self._before(command, start)
        if trail is None or not self._fits(trail, command):
            return
        if trail.origins.setdefault(queue, queue.failures) != queue.failures:
            trail.broken = True
            return
        size = self._size
        old = trail.length
        if isinstance(embedded, EmbedSampledCommand):
            assert self._chosen is not None
            trail.chosen[old] = self._chosen
            trail.tokens.append(0)
        else:
            trail.tokens.extend(embedded.tokens)
        trail.length = old + len(command.inputs)
        fresh = command.output_pages[1:] if old % size else command.output_pages
        if fresh:
            trail.add_pages(fresh, self._pool)
            self._of.update(dict.fromkeys(fresh, trail))
        if trail.length // size > old // size:
            mark = PageMark(self._cache, trail, queue)
            trail.marks.append(mark)
            self._cache.mark(queue, mark)

    def _before(self, command: ForwardCommand, start: int) -> Trail | None:
        """The trail of just what a forward attends to, `start` tokens, or None."""
        pages, size = command.pages, self._size
        count = len(pages)
        if count == 0:
            return Trail(command.adapter) if start == 0 else None
        trail = self._of.get(pages.item(count - 1))
        if trail is None or trail.adapter != command.adapter:
            return None
        if start != (count - 1) * size + command.page_used.item(count - 1):
            return None
        raw = pages.tobytes()
        if trail.raw != raw:  # another text that begins with the same full pages
            if start % size or not trail.raw.startswith(raw):
                return None
            return trail.branch(start, size)
        return trail if trail.length == start else None

    def _fits(self, trail: Trail, command: ForwardCommand) -> bool:
        """Whether a forward's slots are the ones after a trail's last."""
        size = self._size
        slots, pages = command.output_slots, command.output_pages
        assert slots is not None
        gap = -trail.length % size
        if gap and pages[0] != trail.pages[-1]:
            return False
        if gap >= len(slots):  # the hot path
            return True
        return all(slots[i] % size == 0 for i in range(gap, len(slots), size))

    def copied(self, queue: CommandQueue, source: int, target: int, count: int) -> None:
        """Takes note of the copy of a page's first slots to an empty page."""
        trail = self._of.get(source)
        if trail is None or queue.failure is not None:
            return
        at = trail.pages.index(source)
        length = at * self._size + count
        if length > trail.length or self._pool.masks[source] or not trail.is_sound():
            return
        if self._pool.stamps[source] != trail.stamps[at]:
            return
        other = trail.branch(length, self._size)
        del other.pages[at:], other.stamps[at:]
        other.raw = other.raw[: 4 * at]
        other.done = min(other.done, at * self._size)
        other.add_pages([target], self._pool)
        if other.origins.setdefault(queue, queue.failures) == queue.failures:
            self._of[target] = other

    def truncated(self, pages: Int32, used: list[int], old_stamps: list[int]) -> None:
        """Takes note that pages were cut to fewer slots. Their stamps have changed by that."""
        for page, count, stamp in zip(pages.tolist(), used, old_stamps, strict=True):
            trail = self._of.get(page)
            if trail is None or page not in trail.pages:
                continue
            at = trail.pages.index(page)
            if stamp != trail.stamps[at]:
                continue
            length = at * self._size + count
            if count < min(self._size, trail.length - at * self._size):
                for gone in trail.pages[-(-length // self._size) :]:
                    if self._of.get(gone) is trail:
                        del self._of[gone]
                trail.cut(length, self._size)
            if at < len(trail.stamps):
                trail.stamps[at] = self._pool.stamps.item(page)
