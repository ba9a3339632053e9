"""Malformed arguments to every function: an error each time, nothing left behind, no neighbour
disturbed.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from conformance.conformance_server import PROGRAMS, Place, start
from conformance.values import argument
from conformance.wit_strategies import calls, drawn
from support.rig import host_functions
from support.wat_guests import CORE, OK, flat, guest

from pie_control.wasm.linker import HostFunction
from pie_control.wasm.types import Array, Bytes, List, String
from pie_py.build.wit import parse
from pie_py.client.errors import InferletFailed
from pie_py.client.sync import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "sdk" / "wit" / "inferlet.wit").read_text()
CONTRACT = parse(TEXT)
TRAITS = {name: CONTRACT.interfaces[name] for name in CONTRACT.worlds["inferlet"].imports}
HEADER = " ".join(TEXT[: TEXT.index("package ")].replace("///", " ").split())
CODES = set(re.findall(r"`([a-z-]+)`", HEADER[HEADER.index("The codes are stable") :]))
LIMITS = {"kv_pages": 24, "embeds": 256, "samplers": 4, "grammars": 4}
PROMPT, COUNT = [5, 6, 7, 8], 20
# So that small numbers are live handles of every kind.
SETTING: list[list[Any]] = [
    ["create-queue", ["test"]],
    ["create-queue", ["vision"]],
    ["create-queue", ["test"]],
    ["alloc-kvpage", [1, 4]],
    ["alloc-kvpage", [2, 3]],
    ["alloc-emb", [1, 30]],
    ["alloc-emb", [2, 20]],
    ["embed-txt", [1, [7] * 20, [0, 20], [1, 20]]],
    ["forward", [1, [], [1, 20], [1, 4], [25, 1], []]],
    ["create-sampler", [1, '{"temperature": 0}']],
    ["sample", [1, 25, 1]],
    ["get-next-dist", [1, 25, 5]],
    ["subscribe", ["t"]],
    ["push", ["t", "x"]],
    ["compile-grammar", ["test", "regex", "[a-c]*"]],
    ["synchronize", [1]],
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("bad-input")
    with start(folder, limits=LIMITS, grammar={"compile_seconds": 1.0}) as running:
        yield running
        assert "Traceback" not in running.server.log


@pytest.fixture(scope="module")
def client(place: Place) -> Iterator[Client]:
    with place.server.client() as connected:
        yield connected


class Neighbour:
    """A program that generates all the time, and what it says when it is alone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._program = client.upload(TESTS / "end_to_end" / "guests" / "greedy.py")
        self.alone = self._launch().result()

    def _launch(self) -> Any:
        return self._client.launch(self._program, [json.dumps(PROMPT), str(COUNT)])

    def __enter__(self) -> None:
        self._running = self._launch()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        text = self._running.result()
        assert kind is not None or text == self.alone


@pytest.fixture(scope="module")
def neighbour(client: Client) -> Neighbour:
    return Neighbour(client)


def perform(client: Client, program: str, made: list[list[Any]]) -> list[dict[str, Any]]:
    """Has an instance make calls and end; what came of each."""
    instance = client.launch(program, ["serve", "fuzz"])
    outcomes: list[dict[str, Any]] = []
    # Answers have a limit; but a later text would go to a future that `receive` has opened.
    size = len(made) if any(name == "receive" for name, _ in made) else len(SETTING)
    for first in range(0, len(made), size):
        part = made[first : first + size]
        sent = [[name, [argument(value) for value in args]] for name, args in part]
        instance.send(json.dumps(sent))
        while (answer := instance.receive()) is not None:
            if isinstance(answer, str) and answer.startswith('[{"'):
                break
        if answer is None:
            raise AssertionError(f"it ended: {instance.result()}")
        outcomes += json.loads(answer)
    instance.cancel()
    assert len(outcomes) == len(made)
    return outcomes


def assert_nothing_is_left(client: Client, program: str) -> None:
    """No instance, and every pool as full as at the start, once the exports are withdrawn."""
    deadline = time.monotonic() + 20
    while client.instances() and time.monotonic() < deadline:  # children end after their parents
        time.sleep(0.01)
    assert client.instances() == []
    queues: list[list[Any]] = [["create-queue", [model]] for model in ("test", "vision")]
    listed = perform(client, program, [*queues, ["list-exports", [1]], ["list-exports", [2]]])
    names = [(queue, name) for queue in (1, 2) for name in listed[1 + queue]["ok"]]
    if names:
        releases = [["release-export", [queue, name]] for queue, name in names * 2]
        perform(client, program, [*queues, *releases])
    for name, stats in client.stats().items():
        for pool in ("kv_pages", "host_pages", "embeds", "samplers"):
            if pool in stats:
                assert stats[f"{pool}_free"] == stats[pool], (name, pool)


NAMES = [name for trait in TRAITS.values() for name in trait.functions]
GROUPS, CALLS = 41, 24  # of functions, and of each function in a group


def calls_of(name: str) -> list[list[Any]]:
    """Random calls of one function."""
    trait = next(trait for trait in TRAITS.values() if name in trait.functions)
    one = {"it": type(trait)(trait.enums, {name: trait.functions[name]})}
    # The first example is the simplest one.
    return drawn(st.lists(calls(one), min_size=CALLS, max_size=CALLS), 2)[-1]


@pytest.mark.parametrize("group", range(GROUPS), ids=lambda group: "-".join(NAMES[group::GROUPS]))
def test_calls_of_every_function(client: Client, neighbour: Neighbour, group: int) -> None:
    """Random calls of a few functions: results, or errors with codes that the contract names."""
    check(client, neighbour, NAMES[group::GROUPS])


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_an_hour_of_calls_of_functions_together(client: Client, neighbour: Neighbour) -> None:
    end = time.monotonic() + 3600
    while time.monotonic() < end:
        check(client, neighbour, random.sample(NAMES, 8))


def check(client: Client, neighbour: Neighbour, names: list[str]) -> None:
    program = client.upload(PROGRAMS["rust"](), name="interpreter-rust")
    made = [call for name in names for call in calls_of(name)]
    random.shuffle(made)
    with neighbour:
        outcomes = perform(client, program, [*SETTING, *made])
    for (name, args), outcome in zip([*SETTING, *made], outcomes, strict=True):
        if "error" in outcome:
            code = outcome["error"].split(": ")[0]
            assert code in CODES - {"internal"}, (name, repr(args)[:500], outcome)
    assert_nothing_is_left(client, program)


# What no compiler makes: values that the canonical ABI refuses

FUNCTIONS = host_functions()
WITH_TEXT = [f for f in FUNCTIONS if String() in f.params and f.interface != "source"]
WITH_LIST = [
    f
    for f in FUNCTIONS
    if any(isinstance(p, List | Array | Bytes) for p in f.params) and f.interface != "source"
]


class Wrong(NamedTuple):
    """A call whose values of some kinds have an address and a length that are wrong."""

    function: HostFunction
    place: tuple[int, int]  # address and length
    kinds: tuple[type, ...]

    def __str__(self) -> str:
        return f"{self.function.name}-{self.place}"

    def wat(self) -> str:
        function, pushed = self.function, []
        for param in function.params:
            if isinstance(param, self.kinds):
                pushed += [f"(i32.const {number})" for number in self.place]
            else:
                pushed += [f"({CORE.get(param, 'i32')}.const 0)" for _ in flat(param)]
        if function.fallible or (function.result is not None and len(flat(function.result)) > 1):
            pushed.append("(i32.const 1024)")
        drop = "drop" if function.result is not None and not function.fallible else ""
        return f"(call ${function.name} {' '.join(pushed)}) {drop}"


NO_UTF8 = [Wrong(function, (2048, 4), (String,)) for function in WITH_TEXT]
OUTSIDE = [
    Wrong(function, place, (List, Array, Bytes))
    for place in ((0xFFFFFFF0, 64), (0, 0x3FFFFFFF))
    for function in WITH_LIST
]


@pytest.fixture(scope="module")
def caller(client: Client) -> Callable[[Wrong], str]:
    """Has a guest make one of the calls above. It is one guest, told by the number of its
    arguments which: a component of its own for each would have to be compiled.
    """
    calls = NO_UTF8 + OUTSIDE
    chosen = [
        f"(if (i32.eq (local.get $count) (i32.const {number})) (then {call.wat()}))"
        for number, call in enumerate(calls)
    ]
    functions = list({call.function.name: call.function for call in calls}.values())
    body = f"(i32.store (i32.const 2048) (i32.const 0xfffefdfc)) {' '.join(chosen)} {OK}"
    program = client.upload(guest(functions, body), name="wrong")
    return lambda call: client.launch(program, ["x"] * calls.index(call)).result()


@pytest.mark.parametrize("first", range(6))
def test_text_that_is_no_utf8(
    caller: Callable[[Wrong], str], neighbour: Neighbour, first: int
) -> None:
    with neighbour:
        for call in NO_UTF8[first::6]:
            with pytest.raises(InferletFailed, match=r"trap: .*(utf-8|UTF-8)"):
                caller(call)


@pytest.mark.parametrize("call", OUTSIDE, ids=str)
def test_lists_that_lie_outside_of_memory(caller: Callable[[Wrong], str], call: Wrong) -> None:
    with pytest.raises(InferletFailed, match="trap: "):
        caller(call)
