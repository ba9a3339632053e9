"""Calls of the contract's functions, right ones and such as are wrong somewhere.

The calls of `wit_strategies.py`, which follow from the contract's types, are mutated
and put together anew. An instance of an interpreter makes them, and begins with live handles of
every kind; each outcome must be a result or an error with a code that the contract names.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from attacks.frames import settled_mb
from conformance.conformance_server import PROGRAMS, start
from conformance.test_bad_input import CODES, LIMITS, SETTING, TRAITS
from conformance.values import argument
from conformance.wit_strategies import calls as strategy
from conformance.wit_strategies import drawn
from support.servers import Server

from pie_py.client.errors import InferletFailed
from pie_py.client.sync import Client, Instance

AT_ONCE = 4  # instances
CALLS = 400  # of one instance, until the next one
PART = 25  # in one message: what answers take is limited
CORPUS = 3000  # calls that the others are made of
# Of enums: the interpreter refuses what is none.
NAMES = {name for trait in TRAITS.values() for names in trait.enums.values() for name in names}
NUMBERS = [0, 1, 2, 7, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
POOLS = ("kv_pages", "host_pages", "embeds", "samplers")


def corpus(count: int, seed: int) -> list[list[Any]]:
    """Calls by the contract's types alone."""
    made = drawn(strategy(TRAITS), count)
    random.Random(seed).shuffle(made)
    return made


class Calls:
    """Series of calls: of the corpus, many with something changed."""

    def __init__(self, corpus: list[list[Any]], chance: random.Random) -> None:
        self._chance = chance
        self._by_name: dict[str, list[list[Any]]] = {}
        for call in corpus:
            if call[0] != "receive":  # its future would get the interpreter's next part
                self._by_name.setdefault(call[0], []).append(call)

    def take(self, count: int) -> list[list[Any]]:
        """The next calls. Functions are equally frequent; some come several times in a row."""
        chance, names = self._chance, list(self._by_name)
        made: list[list[Any]] = []
        while len(made) < count:
            name = chance.choice(names)
            for _ in range(chance.choice((1, 1, 1, 2, 5))):
                made.append(self._changed(chance.choice(self._by_name[name])))
        return made[:count]

    def _changed(self, call: list[Any]) -> list[Any]:
        name, args = call
        if name == "wait" or self._chance.random() < 0.4:
            return call
        return [name, [self._mutated(value) for value in args]]

    def _mutated(self, value: Any) -> Any:
        """Another value of the same type, more or less like this one."""
        chance = self._chance
        if chance.random() < 0.5:
            return value
        match value:
            case bool():
                return not value
            case int():
                return chance.choice([chance.randrange(12), *NUMBERS[:5], value ^ 1, value])
            case str() if value and value not in NAMES:
                at = chance.randrange(len(value))
                return chance.choice([value[:at], value[at:] + value[:at], value + "\0"])
            case bytes() if value:
                at = chance.randrange(len(value))
                return value[:at] + bytes([chance.randrange(256)]) + value[at + 1 :]
            case list() if value and all(type(item) is int for item in value):
                return self._numbers(value)
            case list() | tuple():
                return type(value)(self._mutated(item) for item in value)
        return value

    def _numbers(self, value: list[int]) -> list[int]:
        chance = self._chance
        at = chance.randrange(len(value))
        match chance.randrange(4):
            case 0:
                return [chance.randrange(10), chance.randrange(1, 9)]  # a span
            case 1:
                return value[:at]
            case 2:
                return value + value[: chance.randrange(4)]
        return [*value[:at], chance.choice(NUMBERS), *value[at + 1 :]]


@dataclass
class Found:
    """What a run has seen."""

    calls: int = 0
    results: int = 0
    instances: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # instances that ended, and how
    codes: dict[str, int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    seconds: float = 0.0
    before_mb: float = 0.0
    after_mb: float = 0.0


class Fuzzer:
    """Has instances make calls, a few at the same time."""

    def __init__(self, server: Server, client: Client, seed: int, corpus_size: int) -> None:
        self._server, self._client = server, client
        chance = random.Random(seed)
        self._calls = Calls(corpus(corpus_size, seed), chance)
        self._wrong: dict[str, None] = {}
        self.found = Found()

    def run(self, count: int) -> Found:
        """Makes so many calls, of all instances together."""
        found, process = self.found, psutil.Process(self._server.process.pid)
        program = self._client.upload(PROGRAMS["rust"](), name="interpreter-rust")
        self._group(program)
        found.before_mb = process.memory_info().rss / 1e6
        begun, start = found.calls, time.monotonic()
        while found.calls - begun < count and self._server.process.poll() is None:
            self._group(program)
        found.seconds = time.monotonic() - start
        if self._server.process.poll() is not None:
            self._wrong[f"the server has ended: {self._server.process.returncode}"] = None
        else:
            self._look_for_leaks(program)
            found.after_mb = settled_mb(process, found.before_mb)
        if "Traceback" in self._server.log:
            self._wrong["the server's log has a traceback"] = None
        found.wrong = tuple(self._wrong)
        return found

    def _group(self, program: str) -> None:
        """Some instances make their calls, part by part in turns, and end."""
        series = {
            self._client.launch(program, ["serve"]): [*SETTING, *self._calls.take(CALLS)]
            for _ in range(AT_ONCE)
        }
        self.found.instances += len(series)
        for first in range(0, CALLS + len(SETTING), PART):
            parts = {one: made[first : first + PART] for one, made in series.items()}
            asked = {one: part for one, part in parts.items() if self._ask(one, part)}
            series = {one: series[one] for one, part in asked.items() if self._judge(one, part)}
        for one in series:
            one.cancel()

    def _ask(self, one: Instance, part: list[list[Any]]) -> bool:
        sent = [[name, [argument(value) for value in args]] for name, args in part]
        try:
            one.send(json.dumps(sent))
        except Exception as error:
            return self._over(one, error)
        return True

    def _judge(self, one: Instance, part: list[list[Any]]) -> bool:
        """Reads what came of a part; whether the instance goes on."""
        try:
            while True:
                answer = one.receive(60)
                if answer is None:
                    return self._over(one, None)
                if isinstance(answer, str) and answer.startswith(('[{"', "[]")):
                    break
        except TimeoutError:
            self._wrong[f"no answer within 60 s to {json.dumps(part, default=repr)[:2000]}"] = None
            one.cancel()
            return False
        self.found.calls += len(part)
        for (name, args), outcome in zip(part, json.loads(answer), strict=True):
            if "error" not in outcome:
                self.found.results += 1
                continue
            code = outcome["error"].split(": ")[0]
            self.found.codes[code] = self.found.codes.get(code, 0) + 1
            if code not in CODES - {"internal"}:
                self._wrong[f"{name} {repr(args)[:300]}: {outcome['error'][:300]}"] = None
        return True

    def _over(self, one: Instance, error: Exception | None) -> bool:
        """An instance has ended: for what it used, or for nothing that it may end for."""
        try:
            text = f"finished: {one.result(30)[:60]}"
        except (InferletFailed, TimeoutError) as failed:
            text = str(failed)[:200]
        reason = text.split(":")[0]
        self.found.ended[reason] = self.found.ended.get(reason, 0) + 1
        if "internal" in text or "trap" in text:
            self._wrong[f"an instance ended: {text} ({error})"] = None
        return False

    def _look_for_leaks(self, program: str) -> None:
        """Nothing is left of the instances, once what they exported is released."""
        deadline = time.monotonic() + 60
        while self._client.instances() and time.monotonic() < deadline:
            time.sleep(0.05)
        if left := self._client.instances():
            self._wrong[f"{len(left)} instances are left"] = None
        one = self._client.launch(program, ["serve"])
        models = ("test", "vision")
        calls: list[list[Any]] = [["create-queue", [model]] for model in models]
        calls += [["list-exports", [1]], ["list-exports", [2]]]
        one.send(json.dumps(calls))
        listed = json.loads(str(one.receive(60)))
        names = [(queue, name) for queue in (1, 2) for name in listed[1 + queue]["ok"]]
        for each in names:
            one.send(json.dumps([["release-export", list(each)]]))
            one.receive(60)
        one.cancel()
        for name, stats in self._client.stats().items():
            for pool in POOLS:
                if pool in stats and stats[f"{pool}_free"] != stats[pool]:
                    text = f"{name}: {stats[f'{pool}_free']} of {stats[pool]} {pool} are free"
                    self._wrong[text] = None


def fuzz(count: int, seed: int) -> Found:
    """Has so many calls made in a server of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        start(
            Path(folder),
            limits=LIMITS,
            grammar={"compile_seconds": 2.0},
            interception={"wait_seconds": 0.2},  # all of them take what there is
            spare_instances=0,
        ) as place,
        place.server.client(patience=60.0) as client,
    ):
        return Fuzzer(place.server, client, seed, CORPUS).run(count)
