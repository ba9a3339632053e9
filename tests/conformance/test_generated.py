"""What follows from the contract is generated from it, and has been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from codegen import OUTPUTS, REPOSITORY, comments, pages, source, stale
from codegen.comments import spell
from codegen.source import GenerateError

BEFORE = "    /// The bytes of every token"  # within the interface `tokenize`
COUNT = """\
    /// How many tokens a text has, as `tokenize.tokenize` tells them.
    /// Errors: `unknown-model`.
    count-tokens: func(model: string, text: string) -> result<u32, string>;
"""
FUTURE = """\
    /// Looks for a text, as `tokenize.tokenize` has it.
    /// Gives: the text, by `take-text`.
    /// Room: after `would-block`, by `push-room`.
    /// Errors: `would-block`, `unknown-model`.
    find-text: func(topic: string, nanoseconds: u64) -> result<u32, string>;
"""


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Adds a function to the contract that the generators read."""
    text = source.CONTRACT.read_text(encoding="utf-8")
    caches = (source.contract, comments.names)

    def declare(function: str) -> None:
        changed = tmp_path / "inferlet.wit"
        changed.write_text(text.replace(BEFORE, f"{function}{BEFORE}"), encoding="utf-8")
        monkeypatch.setattr(source, "CONTRACT", changed)
        for cache in caches:
            cache.cache_clear()

    yield declare
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def test_generated_files_are_up_to_date() -> None:
    assert list(stale()) == [], "run `python -m codegen`"


def test_every_generated_file_says_so_in_its_first_line() -> None:
    for path in OUTPUTS:
        first = (REPOSITORY / path).read_text(encoding="utf-8").partition("\n")[0]
        assert "by `python -m codegen`; do not edit." in first, path


def test_a_new_function_is_in_all_files(declare: Callable[[str], None]) -> None:
    declare(COUNT)
    changed = stale()
    python = changed["sdk/python/inferlet/raw/__init__.py"]
    assert "def count_tokens(model: str, text: str) -> int:" in python
    assert '"""How many tokens a text has, as `tokenize` tells them.\n' in python
    assert '"count_tokens",' in python
    rust = changed["sdk/rust/inferlet/src/host.rs"]
    assert "pub fn count_tokens(model: &str, text: &str) -> Result<u32> {" in rust
    assert "/// How many tokens a text has, as `tokenize::tokenize` tells them.\n" in rust
    line = '"count-tokens" => text::count_tokens(a.text(0)?, a.text(1)?).reply(),'
    assert line in changed["tests/conformance/rust/src/functions.rs"]
    signature = 'Signature({"model": STRING, "text": STRING}, U32, fallible=True)'
    assert f'"count-tokens": {signature}' in changed["control/pie_control/api/signatures.py"]
    page = pages.render_api()  # of the site
    assert "| How many tokens a text has, as `tokenize.tokenize` tells them. |" in page


def test_a_new_function_that_gives_a_future_can_be_awaited(declare: Callable[[str], None]) -> None:
    declare(FUTURE)
    changed = stale()
    python = changed["sdk/python/inferlet/_awaited.py"]
    assert "async def find_text(topic: str, nanoseconds: int) -> str:" in python
    assert '"""Looks for a text, as `tokenize` has it.\n    Errors: `unknown-model`.\n' in python
    assert "future = raw.find_text(topic, nanoseconds)" in python
    assert "return raw.take_text(future)" in python
    assert "await push_room(topic)" in python
    javascript = changed["sdk/js/src/awaited.ts"]
    head = "function findText(topic: string, nanoseconds: bigint | number): Promise<string> {"
    assert head in javascript
    assert "* @throws PieError `unknown-model`." in javascript
    assert "await pushRoom(topic);" in javascript
    rust = changed["sdk/rust/inferlet/src/host.rs"]
    assert "pub fn find_text(topic: &str, time: Duration) -> HostFuture<String> {" in rust
    assert "HostFuture::new(started, super::runtime::take_text)" in rust


@pytest.mark.parametrize(
    "line", ["Gives: text.", "Gives: text, by `take-nothing`.", "Room: by `push-room`."]
)
def test_what_a_function_gives_is_said_in_its_form(
    declare: Callable[[str], None], line: str
) -> None:
    declare(f"    /// {line}\n    odd: func() -> result<u32, string>;\n")
    with pytest.raises(GenerateError, match=line.partition(":")[0]):
        stale()


@pytest.mark.parametrize(
    "declaration",
    [
        "odd: func(limit: option<u32>);",
        "odd: func() -> option<u32>;",
        "odd: func() -> result<tuple<bool, bool>, string>;",
        "odd: func(pairs: list<tuple<u32, u32>>);",
    ],
)
def test_a_type_that_a_generator_does_not_know(
    declare: Callable[[str], None], declaration: str
) -> None:
    declare(f"    {declaration}\n")
    with pytest.raises(GenerateError):
        stale()


def test_names_in_documentation() -> None:
    said = "`http.take-response` or `timeout-ms`, not `invalid-handle`"
    assert spell(said) == "`take_response` or `timeout_ms`, not `invalid-handle`"
    assert spell(said, "::").startswith("`http::take_response` or `timeout_ms`, ")
