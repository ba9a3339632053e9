"""The durable side of an instance: its journal, and its past while it goes over that again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pie_control.errors import ApiError
from pie_control.journal.file import Journal
from pie_control.journal.past import Call, Failure, Past, Topic


class Opened(NamedTuple):
    """A future, a run or a body, from the call that has made it on."""

    key: int  # counts what an instance opens
    maker: str  # the call
    is_computed: bool = False  # by this server, in each life of the instance


def _awake() -> None:
    """It is awake."""


@dataclass(eq=False)
class Durable:
    """One durable instance, in one of its lives.

    Handles, and what the model computes, are those of this life. What the world says is the
    past's, until all its calls were made again.
    """

    journal: Journal
    past: Past
    depart: Callable[[str], None]  # ends the instance, which does not do what its journal says
    most: int  # bytes of the journal
    opened: dict[int, Opened] = field(default_factory=dict)  # futures, by handle
    runs: dict[Any, int] = field(default_factory=dict)  # their keys
    bodies: set[int] = field(default_factory=set)  # whose connections went with an earlier life
    promised: set[int] = field(default_factory=set)  # futures that the past calls ready
    clock_ns: int = 0  # that the program's monotonic clock has shown
    wake: Callable[[], None] = _awake  # there is something new for it, which may sleep
    asleep: bool = False  # it has no guest, and none is on its way
    source: Any = None  # where the message came from that is taken now
    taken: Callable[[], None] | None = None  # called once the journal says that it is
    waits: tuple[Any, float] | None = None  # what it had done when it was looked at, and since when
    _keys: int = 0
    # Calls since the last entry that a call has, by name.
    _quiet: Counter[str] = field(default_factory=Counter)
    _taken: dict[int, int] = field(default_factory=dict)  # tokens of runs, by key
    _known: dict[int, int] = field(default_factory=dict)  # that are in the journal
    items: int = 0  # said to its client so far
    _safe_items: int = 0

    def __post_init__(self) -> None:
        self.items = self._safe_items = self.past.acked + len(self.past.outbox)
        self.past.outbox = []
        self._keys, self.clock_ns = self.past.keys, self.past.clock_ns
        self._known = {run: len(tokens) for run, tokens in self.past.tokens.items()}

    # Its calls

    @property
    def goes_over(self) -> bool:
        """True while the past has calls that it has not made again."""
        return bool(self.past.calls)

    def next_call(self, name: str, key: int | None = None) -> Call | None:
        """The outcome that the past has for a call that is made now; None if it is a new one.

        Raises:
            ApiError: the past has another call; the instance ends.
        """
        calls = self.past.calls
        if not calls:
            return None
        found = calls[0]
        if isinstance(found, Failure) or found.name != name or found.key != key:
            raise self.departs(name, key)
        self._made_again()
        return found

    def next_failure(self, name: str) -> str | None:
        """The error that the past has for a call that gives nothing to write down."""
        self._quiet[name] += 1
        calls = self.past.calls
        if not calls:
            return None
        found = calls[0]
        if not isinstance(found, Failure) or found.name != name:
            return None
        if found.number != self._quiet[name]:
            return None
        self._made_again()
        return found.error

    def _made_again(self) -> None:
        """The next call of the past was made."""
        self.past.calls.popleft()
        self.past.made += 1
        self._quiet.clear()
        if not self.past.calls:
            self.past.taken.clear()  # all that they are about is opened

    def departs(self, name: str, key: int | None = None, why: str = "") -> ApiError:
        """Ends the instance, because the past has something else than a call that is made now."""
        found = self.past.calls[0] if self.past.calls else None
        recorded = "nothing more" if found is None else _described(found.name, found)
        text = (
            f"internal: it departs from its journal at call {self.past.made + 1}:"
            f" the program asks {_described(name, key)}, the journal has {recorded}"
            f"{why and f' ({why})'}; its journal is kept"
        )
        self.depart(text)
        return ApiError("cancelled", "the instance has left its journal")

    def called(self, name: str, key: int | None, value: Any, *, ok: bool = True) -> None:
        """A call has been answered, or failed."""
        self._quiet.clear()
        self.past.made += 1
        source, self.source = self.source, None
        of = () if source is None else (source,)
        self.journal.append("call", name, key, ok, value, *of)
        taken, self.taken = self.taken, None
        if taken is not None:
            self.journal.when_safe(taken)
        self._bound()

    def _bound(self) -> None:
        """Ends an instance whose journal is too long: an endless loop would fill the disk."""
        if self.journal.size > self.most and self.past.end is None:
            self.depart(
                f"limit-exceeded: its journal has more than {self.most} bytes"
                " (durable.journal_bytes); its journal is kept"
            )

    def failed(self, name: str, error: str) -> None:
        """A call has failed that gives nothing to write down."""
        count = self._quiet[name]
        self._quiet.clear()
        self.past.made += 1
        self.journal.append("fails", name, count, error)
        self._bound()

    @property
    def coming_key(self) -> int:
        """That of what is opened next."""
        return self._keys + 1

    def open(self) -> int:
        """The key of something that is opened now."""
        self._keys += 1
        return self._keys

    def seed(self) -> int:
        """A seed for the next sampler, which is the same in each life."""
        text = f"{self.past.head['secret']} {self.open()}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())

    def uses(self, model: str, fingerprint: str) -> None:
        """It makes a queue of a model.

        Raises:
            ApiError: the model is another one than it had before; the instance ends.
        """
        before = self.past.models.get(model)
        if before is None:
            self.past.models[model] = fingerprint
            self.journal.append("model", model, fingerprint)
        elif before != fingerprint:
            why = f"the files of model {model!r} are others than when it began"
            raise self.departs("runtime.create-queue", why=why)

    # Tokens

    def tokens_of_next(self) -> list[int]:
        """Tokens of the run that is started now that were chosen before."""
        return self.past.tokens.get(self.coming_key, [])

    def choice(self) -> int | None:
        """The token that was chosen by the future that is opened now."""
        found = self.past.taken.get(self.coming_key)
        if found is None or not found.ok or not isinstance(found.value, list):
            return None
        token: int = found.value[0]
        return token

    def took(self, run: Any, count: int) -> None:
        """The program has taken more tokens of a run, which are in the journal."""
        key = self.runs[run]
        taken = self._taken[key] = self._taken.get(key, 0) + count
        self._known[key] = max(self._known.get(key, 0), taken)

    def saw(self, key: int, text: str, run: Any, tokens: list[int]) -> None:
        """The tokens of a run were read so far, and a text of them goes to the client; or an empty
        one to the program, with the entry that is next."""
        of_run = self.runs[run]
        first = self._known.get(of_run, 0)
        self._known[of_run] = max(first, len(tokens))
        if not text and len(tokens) <= first:
            return
        self.journal.append("said", key, of_run, text, first, tokens[first:])

    def told(self) -> int:
        """Characters of the text that is opened now that the client was sent."""
        return self.past.said.get(self.coming_key, 0)

    # Others

    def subscribes(self, key: int, topic: str) -> None:
        """It hears of a topic from now on; in a later life that is known."""
        if key not in self.past.topics and not self.goes_over:
            self.past.topics[key] = Topic(topic, [], {})
            self.journal.append("subscribed", key, topic)

    def unsubscribes(self, key: int) -> None:
        """It hears of a topic no more."""
        if self.past.topics.pop(key, None) is not None:
            self.journal.append("unsubscribed", key)
            self._bound()

    def hears(self, key: int, message: str, origin: tuple[str, int] | None) -> bool:
        """True if a message of a topic is a new one, which is in the journal then."""
        found = self.past.topics.get(key)
        if found is None:  # the past unsubscribes soon
            return True
        if origin is not None:
            if found.numbers.get(origin[0], 0) >= origin[1]:
                return False
            found.numbers[origin[0]] = origin[1]
        self.journal.append("heard", key, message, origin)
        self.wake()
        return True

    def child(self, key: int, *facts: str) -> None:
        """A call has launched a child, of an id, or that has ended, by its state and text."""
        self.past.children.setdefault(key, []).extend(facts)
        self.journal.append("child" if len(facts) == 1 else "grown", key, *facts)

    # Its client

    def receives(self, message_id: bytes, message: str | bytes) -> bool:
        """True if a message of a client is a new one, which is in the journal then."""
        if message_id and message_id in self.past.received:
            return False
        self.past.received[message_id] = None
        self.journal.append("sent", message_id, message)
        return True

    def says(self) -> None:
        """A message that is in the journal goes into the outbox."""
        self.items += 1
        items = self.items

        def safe() -> None:
            if self.journal.problem is None:
                self._safe_items = max(self._safe_items, items)

        self.journal.when_safe(safe)

    def may_leave(self, item: int) -> bool:
        """True if an item of the outbox is in the journal for good; the last event always is."""
        if self.journal.problem is not None:  # then it ends, and never goes on but elsewhere
            return not self.journal.is_lost
        return item < self._safe_items or self._safe_items == self.items

    def acked(self, number: int) -> None:
        """The client has all items below a number."""
        if self.past.end is None:
            self.journal.append("acked", number)

    def end(self, ended: Any) -> None:
        """It has ended."""
        self.past.end = ended.state.value, ended.text, ended.time_ns
        self.journal.append("end", *self.past.end)


def _described(name: str, what: int | Call | Failure | None) -> str:
    match what:
        case Failure():
            return f"`{name}`, which fails"
        case Call(_, key, _, _) if key is not None:
            return f"`{name}` number {key}"
        case int():
            return f"`{name}` number {what}"
    return f"`{name}`"
