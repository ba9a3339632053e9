"""The generators: what they write, and when."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import codegen.outputs
from codegen import OUTPUTS, REPOSITORY, comments, config_file, ensure, pages
from codegen.comments import spell
from codegen.source import GenerateError
from pie_control.api.binder import Signature, UnknownTypeError, read_signatures
from pie_control.wasm.types import STRING, U32
from pie_py.build import wit

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
    text = (REPOSITORY / "sdk/wit/inferlet.wit").read_text(encoding="utf-8")
    caches = (wit.contract, comments.names)

    def declare(function: str) -> None:
        changed = tmp_path / "inferlet.wit"
        changed.write_text(text.replace(BEFORE, f"{function}{BEFORE}"), encoding="utf-8")
        monkeypatch.setattr(wit, "shipped_folder", lambda _: tmp_path)
        for cache in caches:
            cache.cache_clear()

    yield declare
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def rendered() -> dict[str, str]:
    return {path: render() for path, render in OUTPUTS.items()}


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout in which nothing has been made yet."""
    place = tmp_path / "checkout"
    for pattern in codegen.outputs.SOURCES:
        for file in REPOSITORY.glob(pattern):
            copy = place / file.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(codegen.outputs, "REPOSITORY", place)
    monkeypatch.setattr(codegen.outputs, "_MADE", place / "codegen/.made")
    return place


def test_all_files_are_made_once(checkout: Path) -> None:
    assert ensure() == list(OUTPUTS)
    assert ensure() == []
    for path, text in rendered().items():
        assert (checkout / path).read_text(encoding="utf-8") == text
        assert "by `python -m codegen`; do not edit." in text.partition("\n")[0], path


def test_a_file_that_was_lost_or_changed_is_made_again(checkout: Path) -> None:
    ensure()
    lost, changed, *_ = OUTPUTS
    (checkout / lost).unlink()
    (checkout / changed).write_text("")
    assert ensure() == [lost, changed]


def test_files_are_made_again_after_a_change_of_their_sources(
    checkout: Path, declare: Callable[[str], None]
) -> None:
    ensure()
    declare(COUNT)
    (checkout / "sdk/wit/inferlet.wit").write_text("// as declared\n")
    assert "sdk/rust/inferlet/src/host.rs" in ensure()


def test_git_keeps_no_generated_file_and_packages_have_them() -> None:
    names = subprocess.run(
        ["git", "ls-files", *OUTPUTS], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert names.stdout == ""
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packed = {path for path in OUTPUTS if not path.startswith("tests/")}
    assert {f"/{path}" for path in OUTPUTS} <= set(ignored)
    assert {f"/{path}" for path in packed} == set(build["artifacts"])


def test_the_generators_need_the_standard_library_alone_and_no_hash_of_python_s() -> None:
    """A build calls them before anything is installed, and finds the runtime by what they write."""
    program = (
        "import sys; sys.path.insert(0, '.'); import codegen\n"
        "for path, render in codegen.OUTPUTS.items(): print(path, render())"
    )
    written = {
        subprocess.run(
            [sys.executable, "-S", "-c", program],
            cwd=REPOSITORY,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(written) == 1


def test_the_page_of_settings_is_up_to_date() -> None:
    text = (REPOSITORY / config_file.PATH).read_text(encoding="utf-8")
    assert text == config_file.render(), "run `python -m codegen`"


def test_a_new_function_is_in_all_files(declare: Callable[[str], None]) -> None:
    declare(COUNT)
    changed = rendered()
    python = changed["sdk/python/inferlet/raw/_functions.py"]
    assert "def count_tokens(model: str, text: str) -> int:" in python
    assert '"""How many tokens a text has, as `tokenize` tells them.\n' in python
    assert "'count_tokens'," in python
    rust = changed["sdk/rust/inferlet/src/host.rs"]
    assert "pub fn count_tokens(model: &str, text: &str) -> Result<u32> {" in rust
    assert "/// How many tokens a text has, as `tokenize::tokenize` tells them.\n" in rust
    line = '"count-tokens" => text::count_tokens(a.text(0)?, a.text(1)?).reply(),'
    assert line in changed["tests/conformance/rust/src/functions.rs"]
    signature = Signature({"model": STRING, "text": STRING}, U32, fallible=True)
    assert read_signatures(wit.contract())["tokenize"]["count-tokens"] == signature
    page = pages.render_api()  # of the site
    assert "| How many tokens a text has, as `tokenize.tokenize` tells them. |" in page


def test_a_new_function_that_gives_a_future_can_be_awaited(declare: Callable[[str], None]) -> None:
    declare(FUTURE)
    changed = rendered()
    python = changed["sdk/python/inferlet/_generated/awaited.py"]
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
        rendered()


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
        rendered()


def test_a_type_that_the_host_does_not_know(declare: Callable[[str], None]) -> None:
    declare("    odd: func(limit: option<u32>);\n")
    with pytest.raises(UnknownTypeError, match="option<u32>"):
        read_signatures(wit.contract())


def test_names_in_documentation() -> None:
    said = "`http.take-response` or `timeout-ms`, not `invalid-handle`"
    assert spell(said) == "`take_response` or `timeout_ms`, not `invalid-handle`"
    assert spell(said, "::").startswith("`http::take_response` or `timeout_ms`, ")
