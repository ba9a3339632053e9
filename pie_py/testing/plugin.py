"""pytest's plugin: the fixtures `pie`, with a model that answers what the test says, and
`pie_tiny`, with the embedded one.

::

    def test_capital(pie):
        pie.answers("Paris.")
        done = pie.run("main.py", "--country", "France")
        assert done.text == "Paris."
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pie_py.config.temporary import TemporaryFolder

# What takes long to import is imported by the fixtures: every run of pytest loads this module.
if TYPE_CHECKING:
    from pie_py.client import sync
    from pie_py.testing.script import Line, ScriptFile

KEEPS_PAGES = "keeps_pages"


@dataclass(frozen=True)
class Done:
    """A program's end.

    Attributes:
        text: its result.
        sent: the messages that it sent, in order.
        log: the lines that it printed or logged.
    """

    text: str
    sent: list[str | bytes]
    log: list[str]


class Pie:
    """A server for one test.

    Attributes:
        client: connected to it; `client.run(function)` and all else works.
        folder: in which paths of programs begin: that of the test's file.
    """

    def __init__(self, server: _Server, test: pytest.FixtureRequest, *, scripted: bool) -> None:
        from pie_py.testing.script import SCRIPT, ScriptFile

        self.client = server.client
        self.folder = test.path.parent
        self._test = test
        self._script: ScriptFile | None = None
        if scripted:
            self._script = ScriptFile(server.folder / "model" / SCRIPT)
            self._script.write([])
        self._lines: list[Line] = []

    def answers(self, *texts: str, tokens: Sequence[int] = (), when: str = "") -> None:
        """Says what the model will say.

        Several texts are the answers of one conversation, in order; the last is given again, and a
        stop token ends each. Grammars hold: of what they forbid the model says something else.

        Args:
            texts: what it says.
            tokens: instead of a text.
            when: only in contexts that have this text; without it, in all.
        """
        from pie_py.testing.script import Line

        if self._script is None:
            raise TypeError("pie_tiny is a model that thinks for itself: take the fixture `pie`")
        self._lines += [Line(text=text, when=when) for text in texts]
        if tokens:
            self._lines.append(Line(tokens=tuple(tokens), when=when))
        self._script.write(self._lines)

    def run(
        self, program: str | Path, *args: str, send: Sequence[str | bytes] = (), timeout: float = 60
    ) -> Done:
        """Runs a program to its end.

        Args:
            program: a source in Python or JavaScript, a folder with `main.py`, `main.js` or
                `main.ts`, a Rust crate or a component.
            args: its arguments.
            send: messages for it, sent at once.
            timeout: seconds that it may take.

        Raises:
            InferletFailed: it failed; the text has its traceback.
            TimeoutError: it takes longer; it is ended.
        """
        path = self.folder / program
        if (path / "Cargo.toml").is_file():
            from pie_py.build.rust import build_crate

            path = build_crate(path, path / "target" / f"{path.resolve().name}.wasm", lines=True)
        elif path.exists():
            from pie_py.build.runtimes import RUNTIMES, kind_of_source
            from pie_py.config.settings import read_settings

            if kind_of_source(path) == "javascript":
                RUNTIMES["javascript"].runtime_component(read_settings().cache_folder)
        instance = self.client.launch(self.client.upload(path), args)
        try:
            for message in send:
                instance.send(message)
            text = instance.result(timeout)
        finally:
            if not instance.ended:
                instance.cancel()
        log = [line["text"] for line in instance.logs()["lines"]]
        return Done(text, list(instance), log)


@dataclass(frozen=True)
class _Server:
    """A server for all tests; programs and what they store are gone with it."""

    client: sync.Client
    folder: Path


@contextmanager
def _serving(prepare: Callable[[Path], dict[str, Any]]) -> Iterator[_Server]:
    from pie_py.client import sync

    with TemporaryFolder() as folder:
        settings = {
            "data_folder": folder / "data",
            "stop_seconds": 0,
            **prepare(folder),
        }
        with sync.Client.local(**settings) as client:
            yield _Server(client, folder)


@pytest.fixture(scope="session")
def _replaying_server() -> Iterator[_Server]:
    from pie_py.testing.script import replaying

    with _serving(replaying) as made:
        yield made


@pytest.fixture(scope="session")
def _tiny_server() -> Iterator[_Server]:
    with _serving(lambda folder: {"models": [{"source": "pie-tiny"}]}) as made:
        yield made


@pytest.fixture
def pie(request: pytest.FixtureRequest, _replaying_server: _Server) -> Iterator[Pie]:
    """A server whose model says what the test tells it (`pie.answers`), and else nothing.

    A test fails whose programs leave KV pages behind, in saved contexts that are not deleted,
    unless it is marked `keeps_pages`.
    """
    with _no_leak(_replaying_server.client, request):
        yield Pie(_replaying_server, request, scripted=True)


@pytest.fixture
def pie_tiny(request: pytest.FixtureRequest, _tiny_server: _Server) -> Iterator[Pie]:
    """As `pie`, with the embedded model `pie-tiny`, which makes sentences of its own."""
    with _no_leak(_tiny_server.client, request):
        yield Pie(_tiny_server, request, scripted=False)


@contextmanager
def _no_leak(client: sync.Client, request: pytest.FixtureRequest) -> Iterator[None]:
    before = _exported(client)
    yield
    for instance in client.instances():
        client.kill(instance["id"])
    left = _exported(client) - before
    if left > 0 and request.node.get_closest_marker(KEEPS_PAGES) is None:
        pytest.fail(
            f"the test's programs left {left} KV pages behind, in contexts that they saved: delete"
            f" them with Context.delete, or mark the test @pytest.mark.{KEEPS_PAGES}",
            pytrace=False,
        )


def _exported(client: sync.Client) -> int:
    return sum(model["exported_pages"] for model in client.stats().values())


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", f"{KEEPS_PAGES}: programs of the test may keep KV pages")
