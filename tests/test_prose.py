"""Prose is plain and within 100 columns: in Markdown, docstrings, comments and the contract."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100

# What is not written, and what stands in its place.
WORDS = {
    r"nobody|somebody|everybody|anybody": "name the subject: no instance, another user",
    r"whoever|whom": "name the subject",
    r"those who|each who|one who": "name the subject: waiting instances",
    r"anew": "again; recompute, restart, refill",
    r"unless told": "by default",
    r"for ever": "forever, always",
    r"in vain": "unused, wasted; a lookup misses",
    r"dearer|dearest": "more expensive, slower",
    r"besides": "in addition to, also",
    r"leftovers?": "what remains",
    r"so manieth": "the n-th",
    r"spare guests?": "warm instance",
    r"host pool": "host memory",
    r"(ms|µs|calls|tokens|requests|bytes) a (token|second|step|request|call)": "per",
}
BANNED = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)

PRODUCT = (
    "control",
    "pie_py",
    "inference",
    "gateway",
    "benchmarks",
    "codegen",
    "sdk",
    "examples",
    "inferlets",
    "docs",
)
# The language of a model's training, not ours; a record of the past.
EXEMPT = ("examples/pie_tiny/corpus/", "CHANGELOG.md")


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


MARKDOWN = _tracked("*.md")
PYTHON = _tracked(*(f"{folder}/*.py" for folder in PRODUCT))
COMMENTED = _tracked("sdk/wit/*.wit", "sdk/rust/*.rs")

Line = tuple[int, str]


def _prose_of_markdown(text: str) -> Iterator[Line]:
    """Numbered lines outside of code blocks, tables and comments."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "    ", "<")):
            yield number, line


def _prose_of_python(text: str) -> Iterator[Line]:
    """Numbered lines of comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if (
                    isinstance(statement, ast.Expr)
                    and isinstance(statement.value, ast.Constant)
                    and isinstance(statement.value.value, str)
                ):
                    lines = statement.value.value.splitlines()
                    yield from enumerate(lines, statement.lineno)


def _comments(text: str) -> Iterator[Line]:
    """Numbered lines that are comments of Rust or WIT."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//"):
            yield number, line


def _prose(path: Path) -> Iterator[Line]:
    text = path.read_text(encoding="utf-8")
    readers = {".md": _prose_of_markdown, ".py": _prose_of_python}
    return readers.get(path.suffix, _comments)(text)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_markdown_is_within_100_columns() -> None:
    long = [
        f"{_name(path)}:{number}: {len(line)} columns"
        for path in MARKDOWN
        if not _name(path).startswith(EXEMPT)
        for number, line in _prose(path)
        if len(line) > COLUMNS and not re.search(r"\S{80}", line)  # a long link cannot be broken
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("kind", [MARKDOWN, PYTHON, COMMENTED], ids=["md", "py", "rust"])
def test_words_are_plain(kind: list[Path]) -> None:
    found = [
        f"{_name(path)}:{number}: {match[0]!r}: {_instead(match[0])}"
        for path in kind
        if not _name(path).startswith(EXEMPT)
        for number, line in _prose(path)
        for match in BANNED.finditer(line)
    ]
    assert not found, "\n".join(found)


def _instead(word: str) -> str:
    return next(text for banned, text in WORDS.items() if re.fullmatch(banned, word, re.IGNORECASE))
