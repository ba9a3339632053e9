"""A journal as an instance goes on from it: what it was told, in order, and what it has said.

Kinds of entries, by their first item:

- `call`, name, key, ok, value, of: a call that gives something, or that others see, and its answer;
  or its error. The key is the number of the future, run or body that it is about; what a future
  gives has the name of the call that has opened it, and `of`, if there is one, says where a message
  came from: the number of the subscription, or what names it in a work queue.
- `fails`, name, count, error: another call has failed, the so-manieth of its name since the last
  entry of these two kinds.
- `begun`, key: a request that may change something elsewhere leaves; `due`, key, time: a sleep ends
  at a date, nanoseconds.
- `said`, key, run, text, first, tokens: the server has sent the client a piece of a run's text,
  read of its tokens up to these, of which the first has a number.
- `model`, name, fingerprint: it uses a model.
- `sent`, id, message: the client has; `acked`, number: it has all messages below.
- `subscribed`, key, topic; `unsubscribed`, key; `heard`, key, message, origin: of a topic, from
  there on; what a durable instance broadcasts has an origin, its id and a number.
- `child`, key, id; `grown`, key, state, text: a child that a call has launched, and its end.
- `asleep`, date, facts, secret: from then on it waits, for a client, a topic or a date in
  nanoseconds, if it is not null. `FACTS` are known by then; the secret is the head's.
- `checkpoint`, state, key, clock, facts: the first entry behind the head, if the program has said
  its state. Keys go on behind this one, so that none is used twice, and so does the clock; `FACTS`
  are known, and the models that it uses.
- `end`, state, text, time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pie_control.journal.file import FORMAT, DamagedJournal, read_ends

SENDS = ("session.send", "session.send-blob")
RECEIVES = ("session.receive", "session.receive-blob")
TOKENS = ("sample.take-tokens", "sample.next-tokens")
MOST_RECEIVED = 4096  # ids that a checkpoint has: clients send again what was not acknowledged
NEXT_MESSAGE, PULL = "messaging.next-message", "messaging.pull"
# What others have told an instance, or are told by it, beside its calls.
FACTS = ("acked", "outbox", "received", "texts", "blobs", "topics", "children")


class Call(NamedTuple):
    """A call of the journal."""

    name: str
    key: int | None
    ok: bool
    value: Any  # its answer, or its error's text
    of: Any = None  # where a message came from


class Failure(NamedTuple):
    """A call that gives nothing, and has failed."""

    name: str
    number: int  # of the calls of this name since the last entry
    error: str


class Topic(NamedTuple):
    """A subscription."""

    topic: str
    waiting: list[str]  # messages that were not taken
    numbers: dict[str, int]  # of the last message of each durable instance


@dataclass
class Past:
    """A journal, read."""

    head: dict[str, Any]
    size: int  # bytes of its file that stand
    calls: deque[Call | Failure] = field(default_factory=deque)  # that are not made again yet
    made: int = 0  # of these
    taken: dict[int, Call] = field(default_factory=dict)  # what became of a future, by its key
    models: dict[str, str] = field(default_factory=dict)  # fingerprints of those that it uses
    begun: set[int] = field(default_factory=set)
    due: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)  # of runs, by their keys
    said: dict[int, int] = field(default_factory=dict)  # characters, by the key of the text
    acked: int = 0
    outbox: list[str | bytes] = field(default_factory=list)  # that it has not
    received: dict[bytes, None] = field(default_factory=dict)  # ids of clients' messages, in order
    texts: list[str] = field(default_factory=list)  # of these, that were not taken
    blobs: list[bytes] = field(default_factory=list)
    topics: dict[int, Topic] = field(default_factory=dict)  # by the subscription's key
    pulled: set[tuple[str, int]] = field(default_factory=set)  # messages of work queues
    # Their ids, and once they have ended their states and results, by the launch's key.
    children: dict[int, list[str]] = field(default_factory=dict)
    asleep: tuple[int | None] | None = None  # it sleeps, until a date
    state: bytes = b""  # that its last checkpoint has
    keys: int = 0  # that were used before this
    clock_ns: int = 0  # that its program had seen then
    end: tuple[str, str, int] | None = None
    _tokens_taken: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: list[Any], size: int) -> Past:
        """That of a file's entries. Raises DamagedJournal."""
        past = cls(head_of(entries), size)
        for number, entry in enumerate(entries[1:], 1):
            try:
                past._take(*entry)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise DamagedJournal(f"entry {number} makes no sense: {error}", entries) from None
        return past

    @classmethod
    def of_sleeper(cls, path: Path) -> Past | None:
        """The facts of one that sleeps, by the ends of its journal; None if it is awake, or has
        told much. Raises OSError.
        """
        try:
            if (found := read_ends(path)) is None:
                return None
            [_, asleep, *_], _ = found
            # What a client has sent may look like such an entry, but for the secret.
            if asleep[-1] != head_of(found[0])["secret"]:
                return None
            past = cls.of(*found)
        except DamagedJournal:
            return None
        return None if past.asleep is None else past

    def facts(self) -> dict[str, Any]:
        """The fields of an entry `asleep`."""
        return {name: getattr(self, name) for name in FACTS} | {"received": list(self.received)}

    def cut(self, state: bytes, keys: int, clock_ns: int) -> list[Any]:
        """The entries of the journal of an instance that begins again with a state."""
        received = list(self.received)[-MOST_RECEIVED:]
        facts = self.facts() | {"children": {}, "models": self.models, "received": received}
        return [self.head, ["checkpoint", state, keys, clock_ns, facts]]

    def _take(self, kind: str, *rest: Any) -> None:
        if kind != "acked":
            self.asleep = None
        match kind:
            case "call":
                self._called(Call(*rest))
            case "fails":
                self.calls.append(Failure(*rest))
            case "model":
                self.models[rest[0]] = rest[1]
            case "begun":
                self.begun.add(rest[0])
            case "due":
                self.due[rest[0]] = rest[1]
            case "said":
                key, run, text, first, tokens = rest
                self.said[key] = self.said.get(key, 0) + len(text)
                self._chose(run, first, tokens)
                if text:
                    self.outbox.append(text)
            case "sent":
                self.received[rest[0]] = None
                (self.texts if isinstance(rest[1], str) else self.blobs).append(rest[1])
            case "acked":
                del self.outbox[: rest[0] - self.acked]
                self.acked = rest[0]
            case "subscribed":
                self.topics[rest[0]] = Topic(rest[1], [], {})
            case "unsubscribed":
                self.topics.pop(rest[0], None)
            case "heard":
                key, message, origin = rest
                if key in self.topics:
                    self.topics[key].waiting.append(message)
                    if origin is not None:
                        self.topics[key].numbers[origin[0]] = origin[1]
            case "child" | "grown":
                self.children.setdefault(rest[0], []).extend(rest[1:])
            case "asleep":
                self.asleep = (rest[0],)
                self._knows(rest[1])
            case "checkpoint":
                self.state, self.keys, self.clock_ns, facts = rest
                self._knows(facts)
            case "end":
                self.end = (rest[0], rest[1], rest[2])
            case _:
                raise DamagedJournal(f"an entry is of the unknown kind {kind!r}")

    def _knows(self, facts: dict[str, Any]) -> None:
        vars(self).update(facts)
        self.received = dict.fromkeys(self.received)
        self.topics = {key: Topic(*topic) for key, topic in self.topics.items()}

    def _called(self, call: Call) -> None:
        self.calls.append(call)
        if call.name in TOKENS:
            if call.ok and call.key is not None:
                first = self._tokens_taken.get(call.key, 0)
                self._tokens_taken[call.key] = first + len(call.value)
                self._chose(call.key, first, call.value)
        elif call.key is not None:
            self.taken[call.key] = call
        if call.ok and call.name in SENDS:
            self.outbox.append(call.value)
        if call.ok and call.name in RECEIVES:
            waiting: list[Any] = self.texts if isinstance(call.value, str) else self.blobs
            waiting.remove(call.value)
        if call.of is not None and call.name == PULL:
            self.pulled.add((call.of[0], call.of[1]))
        elif call.of in self.topics:
            self.topics[call.of].waiting.remove(call.value)

    def _chose(self, run: int, first: int, tokens: list[int]) -> None:
        known = self.tokens.setdefault(run, [])
        known[first : first + len(tokens)] = tokens


def head_of(entries: list[Any]) -> dict[str, Any]:
    """Reads a journal from its entries. Raises DamagedJournal."""
    head = entries[0] if entries else None
    if not isinstance(head, dict) or head.get("journal") != FORMAT:
        raise DamagedJournal("its head is missing, or of another version of pie_py")
    return head


def up_to(entries: list[Any], call: int) -> list[Any]:
    """The entries of a journal, without its head, up to and with a call by its number; without its
    end, and without messages of the client that were not taken by then.
    """
    found, calls = [], 0
    for entry in entries[1:]:
        if entry[0] in ("call", "fails"):
            calls += 1
            if calls > call:
                break
        if entry[0] not in ("end", "asleep", "child", "grown"):  # its children are not the others'
            found.append(entry)
    taken = [e[4] for e in found if e[0] == "call" and e[1] in RECEIVES and e[3]]
    kept = []
    for entry in found:
        if entry[0] == "checkpoint":
            facts = entry[-1]
            waiting = {name: _take_out(facts[name], taken) for name in ("texts", "blobs")}
            entry = [*entry[:-1], facts | waiting]
        if entry[0] != "sent" or _take_out([entry[2]], taken):
            kept.append(entry)
    return kept


def _take_out(messages: list[Any], taken: list[Any]) -> list[Any]:
    """Those of messages that were taken, which are no longer among these."""
    found = []
    for message in messages:
        if message in taken:
            taken.remove(message)
            found.append(message)
    return found
