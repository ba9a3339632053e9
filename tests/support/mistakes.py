"""What the page of beginners' mistakes says that they are told."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/debugging.md"
_CODE = re.compile(r"``(.+?)``|`(.+?)`")


def documented(language: str) -> dict[str, list[str]]:
    """Pieces of the message to each mistake, by the section of a language."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## Mistakes in {language}\n")[2]
    table = section.partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \| (.*`.*) \|$", table, re.MULTILINE)
    return {name: [two or one for two, one in re.findall(_CODE, told)] for name, told in rows}
