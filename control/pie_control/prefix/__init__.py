"""The prefix cache of one model: texts computed once are found by their tokens.

Pages enter when a guest says so, with the tokens that the server has seen it write
(`provenance.py`). They are immutable then, and the cache holds a reference to them as do all
instances that map them. A page that only the cache holds counts as free: the pool takes it back
when it has no other, of each user the one first whose text is expected back last (`pauses.py`). Its
content moves to host memory if it is faster back from there than computed again (`tree.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pie_control.prefix.pauses import PERSON_SECONDS, History, Pauses, text_pages
from pie_control.prefix.provenance import Provenance, Record, Traced
from pie_control.prefix.tree import Away, Node, Path, Pending, cut, grow, pages_of, walk
from pie_py.config.scheduling import PrefixCacheConfig
from pie_py.wire.plan import Int32

if TYPE_CHECKING:
    from pie_control.instances.instance import Account, Instance
    from pie_control.resources.pools import PagePool
    from pie_control.resources.space import Space

TOKEN_BYTES = 4
# Pages that have to be on their way for a text to wait for them. The worker runs one plan after the
# other, so to wait for what the next one computes costs less than to compute it a second time; but
# for so few pages as these a step of its own is not worth it.
WORTH_WAITING = 2
DEPTH_BITS = 22  # of a page's age: deeper pages go before their parents
SHARE = 32  # of the idle pages that leave at once at least: finding the oldest looks at all of them


class PrefixCache:
    """The cached pages of one model, by the user who may find them, adapter, and tokens."""

    def __init__(
        self,
        pool: PagePool,
        config: PrefixCacheConfig,
        later: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        history: History,
        away: Callable[..., Away],
        fail: Callable[[Int32, str], None],
    ) -> None:
        """Makes an empty cache. `later` calls back once the results at hand have reached their
        instances; `history` has durations of waits for tools; `away` makes the part in host memory;
        `fail` ends who uses pages.
        """
        self._pool = pool
        self._config = config
        self._later = later
        self._clock = clock
        self._width = pool.page_size * TOKEN_BYTES
        self._roots: dict[tuple[str, int], Node] = {}
        self._nodes: dict[int, Node] = {}  # by page
        self._ages: NDArray[np.int64] = np.zeros(pool.size, np.int64)
        self._touched: NDArray[np.float64] = np.zeros(pool.size)  # when
        self._answered = np.zeros(pool.size, np.bool_)  # texts that wait for a person at most
        self._ends: WeakKeyDictionary[Instance, Node] = WeakKeyDictionary()  # of their texts
        self.pauses = Pauses(pool, history)
        self._uses = 0  # lookups and insertions so far: the clock of ages
        self._owners: Int32 = np.zeros(pool.size, np.int32)  # numbers of users
        self._numbers: dict[str, int] = {}  # of users
        self._hit_tokens = 0
        self._asked_tokens = 0
        self._evicted = self._moved = 0
        self._away = away(self._drop, self._lose)
        self._fail = fail
        pool.evict = self._evict

    @property
    def enabled(self) -> bool:
        """True if the operator wants it."""
        return self._config.enabled

    def begin(self, space: Space, account: Traced) -> Provenance:
        """Starts to look at what the queues of an instance write to its pages."""
        if account.provenance is None:
            provenance = Provenance(space.page_pool, space.embed_pool.size, self.settle)
            account.provenance = space.watcher = provenance
        return account.provenance

    def find(self, user: str, adapter: int, tokens: bytes, priority: int) -> Path:
        """The longest shared prefix of a text, the bytes of an int32 array, computed through an
        adapter; with a `pending` that is worth waiting for, or None. A queue does not wait for one
        of lower priority.
        """
        root = self._roots.get(self._key(user, adapter))
        path = Path([], 0, None) if root is None else walk(root, tokens, self._width)
        here = pages_of([node for node in path.nodes if node.page >= 0])
        self.pauses.asked(user, here, self._clock())
        pending = path.pending
        if pending is not None and (path.coming < WORTH_WAITING or pending.priority < priority):
            pending = None
        return Path(path.nodes, path.coming, pending)

    def note(self, asked: int, found: int) -> None:
        """Counts tokens that were asked for, and those of them that were there."""
        self._asked_tokens += asked
        self._hit_tokens += found

    def use(self, instance: Instance, nodes: list[Node], *, spare: bool) -> Int32:
        """The pages of the first of these nodes, which an instance's text begins with; they are the
        youngest now. All of them, if pages are free and to `spare` for those in host memory.
        """
        if any(node.page < 0 for node in nodes):
            nodes = self._bring_back(instance, nodes, spare)
        pages = pages_of(nodes)
        self._touch(pages)
        if nodes:
            self._ends[instance] = nodes[-1]
        return pages

    def _bring_back(self, instance: Instance, nodes: list[Node], spare: bool) -> list[Node]:
        here = pages_of([node for node in nodes if node.page >= 0])
        self._pool.retain(here)  # none of them leaves for the others
        away = [node for node in nodes if node.page < 0]
        back = away[: spare * self._pool.free]
        pages = self._away.bring_back(back)
        self._nodes.update(zip(pages.tolist(), back, strict=True))
        self._owners[pages] = self._number(instance.user)
        self._pool.release(here)
        return nodes if back == away else nodes[: nodes.index(away[len(back)])]

    def _lose(self, nodes: list[Node], error: str) -> None:
        """On their way to host memory or back the contents of nodes were lost."""
        lost = pages_of([node for node in nodes if node.page >= 0 and node.parent is not None])
        self._drop(nodes)
        self._fail(lost, f"internal: pages could not be moved to or from host memory: {error}")

    def insert(self, instance: Instance, record: Record, most: int, priority: int) -> int:
        """Takes in the first pages of a record, at most `most`, and returns how many may be found.

        Those that commands under way are still to fill are found when they are there.
        """
        size, pool = self._pool.page_size, self._pool
        count = min(most, record.length // size)
        if not record.is_sound() or record.epoch != pool.epoch:
            return 0
        stamps = pool.stamps[record.pages[:count]]
        changed = np.flatnonzero(stamps != record.stamps[:count])
        if len(changed):
            count = int(changed[0])
        count = record.known(count * size) // size
        if count == 0:
            return 0
        tokens = record.tokens[: count * size].tobytes()
        key = self._key(instance.user, record.adapter)
        root = self._roots.setdefault(key, Node(None, b"", -1))
        root.owner = self._number(instance.user)
        pending = Pending(count * size, priority)
        done = min(record.done // size, count)
        path, added = grow(root, tokens, record.pages[:count], self._width, done, pending)
        if pending.nodes:
            record.waiting.append(pending)
        if added:
            self._nodes.update((node.page, node) for node in added)
            pages = pages_of(added)
            pool.cache(pages)
            self._away.forget(added)
            self._owners[pages] = self._number(instance.user)
        self._touch(pages_of(path))
        self._ends[instance] = path[-1]
        self.pauses.place(instance.id, path[-1], self._clock())
        return count

    def wait(self, instance: Instance, kind: str) -> None:
        """The conversation, a turn of which an instance has served, waits for a tool."""
        if (end := self._ends.get(instance)) is not None:
            self.pauses.begin(instance.id, instance.account, kind, end, self._clock())

    def await_person(self, instance: Instance) -> None:
        """The conversation has ended, or goes on when a person has read the answer."""
        if (end := self._ends.get(instance)) is not None:
            pages, own = text_pages(end)
            self._answered[pages[len(pages) - own :]] = True

    def go_on(self, instance: str, user: str | None) -> tuple[float, Account] | None:
        """It waits no longer, if it does and is a user's: how long it has, and on whose account."""
        return self.pauses.end(instance, user, self._clock())

    def settle(self, record: Record) -> None:
        """A record has got further, or has broken: what was pending is there, or never will be."""
        waiting, record.waiting = record.waiting, []
        for pending in waiting:
            if record.broken:
                self._give_up(pending)
            elif record.done >= pending.end:
                for node in pending.nodes:
                    node.pending = None
                self._wake(pending)
            else:
                record.waiting.append(pending)

    def _give_up(self, pending: Pending) -> None:
        self._drop(pending.nodes)
        self._wake(pending)

    def _wake(self, pending: Pending) -> None:
        # Not before the computing instance has gone on: its text may be longer, and no other
        # instance need compute that again.
        waiters, pending.waiters = pending.waiters, {}
        for future in waiters:
            self._later(future.resolve)

    def drop_adapter(self, slot: int) -> None:
        """An adapter is gone, and its slot is the next one's."""
        self._drop_texts([key for key in self._roots if key[1] == slot])

    def clear(self) -> None:
        """The weights have changed: what was or is computed by the former ones is not found."""
        self._pool.epoch += 1
        self._drop_texts([*self._roots])

    def _drop_texts(self, keys: list[tuple[str, int]]) -> None:
        for key in keys:
            self._drop([*self._roots.pop(key).children.values()])

    def _number(self, user: str) -> int:
        user = "" if self._config.shared else user
        return self._numbers.setdefault(user, len(self._numbers))

    def _key(self, user: str, adapter: int) -> tuple[str, int]:
        return ("" if self._config.shared else user), adapter

    def _touch(self, pages: Int32) -> None:
        """Makes pages of one path, in order, the youngest of all."""
        self._uses += 1
        depths = np.arange(len(pages), dtype=np.int64)
        self._pool.retention.lift(pages)
        self._ages[pages] = (self._uses << DEPTH_BITS) - depths
        self._touched[pages] = self._clock()
        self._answered[pages] = False

    def _evict(self, count: int) -> None:
        """Gives the pool at least this many pages back, of those that no instance has mapped."""
        idle = self._pool.idle_pages()
        enough = min(max(count, len(idle) // SHARE), len(idle))
        oldest = idle
        if enough < len(idle):
            oldest = idle[np.argpartition(self._ages[idle], enough - 1)[:enough]]
            if self._pool.retention.rated or self.pauses or self._answered[idle].any():
                oldest = self._in_place(idle, oldest)
        leaving = [self._nodes[page] for page in oldest[np.argsort(self._ages[oldest])].tolist()]
        moved = self._away.move_out([node for node in leaving if node.pending is None])
        for page in moved.tolist():
            del self._nodes[page]
        self._pool.uncache(moved)
        self._moved += len(moved)
        before = len(self._nodes)
        self._drop([node for node in leaving if node.page >= 0])
        self._evicted += before - len(self._nodes)

    def _in_place(self, idle: Int32, oldest: Int32) -> Int32:
        """As many pages of each user as are among the oldest: those first that are worth least, of
        these those that rest longest.
        """
        leaving = np.bincount(self._owners[oldest], minlength=len(self._numbers))
        now = self._clock()
        worth, rests = self._pool.retention.of(idle, now), self.pauses.rests(self._touched, now)
        rests[self._answered] += PERSON_SECONDS
        order = np.lexsort((self._ages[idle], -rests[idle], worth, self._owners[idle]))
        owners = self._owners[idle][order]
        rank = np.arange(len(idle)) - np.searchsorted(owners, owners)
        return idle[order[rank < leaving[owners]]]

    def _drop(self, nodes: list[Node]) -> None:
        """Forgets nodes with all below them, and wakes what waited for them."""
        for top in nodes:
            gone = cut(top)
            here = [node for node in gone if node.page >= 0]
            for node in here:
                del self._nodes[node.page]
                if node.pending is not None:
                    self._wake(node.pending)
                    node.pending = None
            self._pool.uncache(pages_of(here))
            self._away.forget(gone)

    def rested(self) -> float | None:
        """For how many seconds that has rested which was used longest ago: what was used earlier
        and not since is gone. None while nothing has had to give way.
        """
        if not self._evicted:
            return None
        cached = self._touched[self._pool.cached]
        return self._clock() - float(cached.min()) if len(cached) else 0.0

    def stats(self) -> dict[str, int]:
        """Counters since the start, and what is in it."""
        return {
            "prefix_pages": len(self._nodes),
            "prefix_pages_free": self._pool.idle,
            "prefix_tokens_asked": self._asked_tokens,
            "prefix_tokens_found": self._hit_tokens,
            "prefix_pages_evicted": self._evicted,
            "prefix_pages_moved": self._moved,
        }
