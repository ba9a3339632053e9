"""Functions and classes of the caller that run in an inferlet, against a real server."""

from __future__ import annotations

import asyncio
import importlib
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import anyio
import numpy as np
import pytest
from support import travelling
from support.servers import Server
from support.travelling import Account, City, Colour, Leaver, Point, Refused
from support.travelling_helper import shout

from pie_py.client import CannotTravel, Client, InferletFailed, inferlet, sync
from pie_py.client.remote.reach import Reach, _is_pure
from pie_py.client.remote.values import dumps, loads
from pie_py.testing.script import Line

BROKEN = np.zeros(2)
CLIENT = sync.Client()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(replays=[Line("a mouse in the house")]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[sync.Client]:
    with server.client() as connected:
        yield connected


class Unkept(OSError):
    """Keeps what it was made of to itself."""

    def __init__(self, code: int) -> None:
        self.code = code


def test_values_come_back_as_they_were() -> None:
    values: list[Any] = [
        None, True, 1.5, "ü\ud800", b"\0\xff", [1, (2, {3}), frozenset({4})], {"$": 1},
        {(1, 2): b"x"}, {"a": Point(1, 2, ["t"])}, City(name="x"), Colour.RED, ValueError("a", 1),
        Refused("r"), ExceptionGroup("several", [KeyError(1)]), float("inf"),
        FileNotFoundError(2, "gone", "a.txt"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        SyntaxError("no", ("a.py", 3, 1, "x =", 3, 4)), Unkept(1),
    ]  # fmt: skip
    names: dict[str, type] = {}

    def name_of(kind: type) -> str:
        names[kind.__name__] = kind
        return kind.__name__

    for value in values:
        back = loads(dumps(value, "it", name_of), names.__getitem__)
        assert type(back) is type(value)
        if isinstance(value, BaseException):
            assert (str(back), repr(back.args)) == (str(value), repr(value.args))
            assert vars(back) == vars(value)
        else:
            assert back == value


def test_arguments_results_and_what_is_printed(
    client: sync.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    text = client.run(travelling.complete, "Once upon a time", tokens=6)
    assert isinstance(text, str)
    assert text
    assert capsys.readouterr().out == "thinking of Once upon a time\n"
    client.run(travelling.talk)
    assert capsys.readouterr().out == "a message\nprinted"
    value = {"bytes": b"\0", 1: (2.5, {3})}
    back = client.run(travelling.mixed, value, City(name="paris"))
    assert back == (value, City(name="PARIS", size=17), Point(10), Colour.RED)


def test_what_is_around_a_function_goes_with_it(client: sync.Client) -> None:
    factor, names = 3, {"a": 1}

    def scaled(n: int) -> int:
        return n * factor + names["a"]

    @inferlet
    def outer(n: int) -> int:
        return scaled(n) + 1

    assert client.run(outer, 2) == 8
    assert outer(2) == 8
    assert client.run(lambda n: scaled(n), 4) == 13
    assert client.run(travelling.doubled, 4) == 9


def test_exceptions_come_with_the_lines_of_the_caller(client: sync.Client) -> None:
    with pytest.raises(Refused, match="no") as caught:
        client.run(travelling.refuse, 1)
    assert caught.value.code == 7
    assert isinstance(caught.value.__cause__, ValueError)
    source = Path(travelling.__file__).read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(source) if "the line that tracebacks name" in text)
    frames = traceback.extract_tb(caught.value.__traceback__)
    own = [(frame.name, frame.lineno) for frame in frames if frame.filename == travelling.__file__]
    assert [name for name, _ in own] == ["refuse", "refuse", "inner"]
    assert own[-1][1] == line
    assert "raise Refused" in "".join(traceback.format_exception(caught.value))
    assert [frame.name for frame in frames[1:-3]] == ["call"]
    with pytest.raises(InferletFailed, match="Hidden: of the inferlet alone"):
        client.run(travelling.unknown_error)


@pytest.mark.parametrize(
    "kind",
    ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError", "BaseExceptionGroup",
     "Stop", "Halt"],
)  # fmt: skip
def test_what_would_end_the_callers_process_is_a_failed_inferlet(
    server: Server, client: sync.Client, kind: str
) -> None:
    failed = partial(pytest.raises, InferletFailed, match=kind)
    with failed():
        client.run(travelling.leave, kind)
    with failed():
        client.spawn(travelling.leave, kind).result()
    (result,) = client.map(travelling.leave, [kind], return_exceptions=True)
    assert isinstance(result, InferletFailed)
    with failed():
        client.map(travelling.leave, [kind])
    stream = client.stream(travelling.leave_while_yielding, kind)
    assert next(stream) == 1
    with failed():
        next(stream)
    with failed():
        client.create(Leaver, kind)
    with client.create(Leaver) as leaver, failed():
        leaver.leave(kind)

    async def main() -> None:
        async with Client(server.endpoint) as asynchronous:
            call = asynchronous.run(travelling.leave, kind)
            results = await asyncio.gather(call, return_exceptions=True)
            assert isinstance(results[0], InferletFailed)

    asyncio.run(main())


def test_a_task_that_exits_fails_its_inferlet(client: sync.Client) -> None:
    for status in (0, 3):
        with pytest.raises(InferletFailed, match="SystemExit"):
            client.run(travelling.leave_in_a_task, status)


def test_what_is_no_exception_is_not_rebuilt_in_another(client: sync.Client) -> None:
    with pytest.raises(InferletFailed, match="ValueError: 0") as caught:
        client.run(travelling.leave, "nested")
    assert isinstance(caught.value.__cause__, InferletFailed)
    assert "Stop: 0" in str(caught.value.__cause__)


def test_notebooks_show_where_a_function_failed(server: Server) -> None:
    """IPython looks for the instruction of each frame, and did not end where there was none."""
    cells = [
        "from pie_py.client.sync import Client",
        f"client = Client({server.endpoint!r}).__enter__()",
        "def refuse(x):\n    y = 1\n    raise ValueError('no')",
        "client.run(refuse, 3)",
        "client.__exit__(None, None, None)",
    ]
    code = "from IPython.core.interactiveshell import InteractiveShell\n"
    code += "shell = InteractiveShell.instance(colors='nocolor')\n"
    code += f"for cell in {cells!r}:\n    shell.run_cell(cell)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "----> 3     raise ValueError('no')" in done.stdout, done.stdout + done.stderr


def test_a_line_of_many_megabytes_is_printed(
    client: sync.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.run(travelling.long_line)
    assert capsys.readouterr().out == "ä" * (9 << 20) + "\n"


def test_bytes_that_are_too_many_for_a_call(
    client: sync.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InferletFailed, match="limit-exceeded"):
        client.run(travelling.too_long)
    assert capsys.readouterr().out == "refused\n"


def test_what_does_not_yield_and_what_makes_an_object(client: sync.Client) -> None:
    with pytest.raises(TypeError, match=r"`client.run\(shout"):
        list(client.stream(shout, "a"))
    with pytest.raises(TypeError, match=r"`client.create\(Account"):
        client.run(Account, "Ada")


def test_streams_and_many_at_once(client: sync.Client) -> None:
    assert list(client.stream(travelling.count, 3)) == [Point(0), Point(1), Point(2)]
    stream = client.stream(travelling.count, 10**6)
    assert next(stream) == Point(0)
    stream.close()  # type: ignore[attr-defined]
    assert not client.instances()  # it has not gone on
    with pytest.raises(TypeError, match=r"client.stream\(count"):
        client.run(travelling.count, 3)
    assert client.map(lambda n, m: n * m, range(20), range(20), at_once=7) == [
        n * n for n in range(20)
    ]
    with pytest.raises(ZeroDivisionError):
        client.map(lambda n: 1 // n, [1, 0, 1])
    first, second = client.map(lambda n: 1 // n, [1, 0], return_exceptions=True)
    assert first == 1
    assert isinstance(second, ZeroDivisionError)
    call = client.spawn(travelling.complete, "A word")
    assert call.result()


async def wait_for_word() -> str:
    from inferlet import session

    return await session.receive()


def test_a_call_that_nobody_waits_for_a_while_keeps_its_answer(server: Server) -> None:
    async def main() -> None:
        async with Client(server.endpoint) as client:
            call = await client.spawn(wait_for_word)
            with anyio.move_on_after(0.2) as waiting:
                await call.result()
            assert waiting.cancelled_caught
            await call.instance.send("now")
            assert [await call.result(), await call.result()] == ["now", "now"]
            failed = await client.spawn(lambda: 1 / 0)
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    await failed.result()

    anyio.run(main)


def test_the_synchronous_client_works_within_another_event_loop(client: sync.Client) -> None:
    async def main() -> None:
        assert list(client.stream(travelling.count, 2)) == [Point(0), Point(1)]

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


def test_an_interrupted_stream_ends_its_inferlet(client: sync.Client) -> None:
    main = threading.get_ident()
    stream = client.stream(_yield_and_sleep)
    assert next(stream) == 1
    threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert not client.instances()


def test_objects_live_in_an_inferlet(client: sync.Client) -> None:
    with client.create(Account, "Ada") as account:
        assert account.add(3) == 3
        assert account.add(4) == 7
        assert list(account.history()) == ["Ada", "7"]
        with pytest.raises(Refused, match="Ada"):
            account.fail()
        assert account.add(0) == 7  # it has outlived that
        with pytest.raises(AttributeError, match="withdraw"):
            account.withdraw(1)
    with pytest.raises(Refused, match="nameless"):
        client.create(Account, "")
    assert not client.instances()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_asynchronous_client(server: Server, backend: str) -> None:
    async def main() -> None:
        async with Client(server.endpoint) as client:
            assert [point.x async for point in client.stream(travelling.count, 2)] == [0, 1]
            assert await client.map(lambda n: n + 1, range(3)) == [1, 2, 3]
            async with await client.create(Account, "Ada") as account:
                assert [text async for text in account.history()] == ["Ada", "0"]
            with anyio.move_on_after(0.5):
                await client.run(_sleep)
            assert not await client.instances()  # ended with its caller

    anyio.run(main, backend=backend)


async def _yield_and_sleep() -> AsyncIterator[int]:
    yield 1
    await _sleep()


async def _sleep() -> None:
    import asyncio

    await asyncio.sleep(1000)


def test_limits_end_a_call(client: sync.Client) -> None:
    with pytest.raises(MemoryError):
        client.run(lambda: len([bytearray(1 << 20) for _ in range(1000)]))
    call = client.spawn(_sleep)
    call.cancel()
    with pytest.raises(InferletFailed, match="killed"):
        call.result()


def test_packages_go_if_they_are_named(
    client: sync.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "tinypackage"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from tinypackage.inner import VALUE\n")
    (package / "inner.py").write_text("VALUE = 42\n")
    monkeypatch.syspath_prepend(package.parent)

    def use() -> int:
        from tinypackage import VALUE  # type: ignore[import-not-found]

        return int(VALUE)

    with pytest.raises(CannotTravel, match=r"name it, @inferlet\(modules=\['tinypackage'\]\)"):
        client.run(use)
    assert client.run(inferlet(modules=["tinypackage"])(use)) == 42

    def use_by_name() -> int:  # its code does not say what it imports
        return int(importlib.import_module("tinypackage").VALUE)

    assert client.run(inferlet(modules=["tinypackage"])(use_by_name)) == 42


def compiled() -> Any:
    return np.zeros(3)


def global_that_is_no_data() -> Any:
    return BROKEN


def client_inside() -> Any:
    return CLIENT


def changes_outside() -> Callable[[], None]:
    n = 0

    def change() -> None:
        nonlocal n
        n += 1

    return change


MOVED = FunctionType(compiled.__code__.replace(co_firstlineno=1), globals())
LAMBDAS = lambda: 1, lambda: 2


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (compiled, "compiled uses numpy, which has compiled parts"),
        (global_that_is_no_data, r"`BROKEN` \(.*test_sent_functions.py:\d+\), which can't travel"),
        (client_inside, "pie_py.client"),
        (changes_outside(), "change changes n of the function around it"),
        (len, "not a function or a class written in Python"),
        (Account("x").fail, "spawn its class|create"),
        (eval("lambda: 1"), "has no source"),
        (MOVED, r"the source of compiled is not at .*test_sent_functions.py:1 any more: run it"),
        (LAMBDAS[1], r"test_sent_functions.py:\d+ has several lambdas: write one on each line"),
        (type("Nowhere", (), {}), r"the source of the class \w+ cannot be found"),
    ],
)  # fmt: skip
def test_what_cannot_travel_says_why(target: Callable[..., Any], said: str) -> None:
    with pytest.raises(CannotTravel, match=said):
        Reach(target)


def test_arguments_that_cannot_travel(client: sync.Client) -> None:
    with pytest.raises(CannotTravel, match=r"an argument of complete.*\['a'\] is a numpy.ndarray"):
        client.run(travelling.complete, {"a": BROKEN})
    with pytest.raises(TypeError, match=r"what it returns is a .*object, which can't travel"):
        client.run(lambda: object())
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(CannotTravel, match="refers to itself"):
        client.run(travelling.mixed, cycle, 1)


def test_a_script_and_a_local_server(tmp_path: Path, server: Server) -> None:
    """As a user's script: `__main__`, and the server that runs already."""
    (tmp_path / "test.py").write_text(
        "from dataclasses import dataclass\n"
        "from pie_py.client.sync import Client\n"
        "@dataclass\nclass Pair:\n    a: int\n    b: int\n"
        "def swap(pair):\n    print('swapping')\n    return Pair(pair.b, pair.a)\n"
        "with Client.local() as client:\n    print(client.run(swap, Pair(1, 2)))\n"
    )
    done = subprocess.run(
        [sys.executable, "test.py"],
        cwd=tmp_path,
        env={"PIE_PY_ENDPOINT": server.endpoint, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "swapping\nPair(a=2, b=1)\n", done.stderr


@pytest.mark.parametrize(
    ("top", "pure"), [("typing_extensions", True), ("click", True), ("numpy", False), ("no", True)]
)
def test_only_packages_without_compiled_parts_are_pure(top: str, pure: bool) -> None:
    """A module of one file lies beside others' compiled parts, which are not its own."""
    assert _is_pure(top) is pure
