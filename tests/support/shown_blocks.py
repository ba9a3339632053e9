"""The documents' blocks of code.

A fenced block has the kind that its fence names; an indented one is of a shell. A block whose first
line is a remark with a file's name (`# surer.py`, `// hello/src/lib.rs`) is that file.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"( *)```(\w*)$")
_NAMED = re.compile(r"(?:#|//) ([\w/-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: str  # its path in the repository
    line: int  # of its first line, from 1
    kind: str  # "sh", "python", ...; "" if the fence names none
    code: str

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        named = _NAMED.match(self.code)
        return None if named is None else named[1]

    def __str__(self) -> str:
        """For messages: where it stands, and its first line."""
        return f"{self.page}:{self.line} [{self.kind}] {self.code.partition(chr(10))[0][:60]}"


def pages() -> list[str]:
    """All documents, by their paths in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [page for page in listed.stdout.splitlines() if (ROOT / page).is_file()]


def blocks(page: str) -> Iterator[Block]:
    """A page's blocks of code, from top to bottom."""
    lines = [*(ROOT / page).read_text(encoding="utf-8").splitlines(), ""]
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        begin = at + (fence is not None)
        end = begin
        if fence:
            while lines[end].strip() != "```":
                end += 1
            at = end + 1
        elif lines[at].startswith("    ") and re.match(r"#|\s*$", lines[at - 1]):
            while lines[end].startswith("    "):
                end += 1
            at = end
        else:
            at += 1
            continue
        code = textwrap.dedent("\n".join(lines[begin:end])) + "\n"
        yield Block(page, begin + 1, fence[2] if fence else "sh", code)
