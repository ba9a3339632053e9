"""The library: the inferlets that the package ships, and what each does."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pie_py.build.modules import MAIN
from pie_py.config.shipped_files import shipped_folder

DESCRIPTION = "inferlet.toml"


def library() -> Iterator[dict[str, Any]]:
    """Name, entries and description of each inferlet, by name."""
    for folder in sorted(shipped_folder("inferlets").iterdir()):
        facts = _facts(folder)
        main = folder / MAIN
        if facts or main.is_file():
            text = facts.get("description") or _first_line(main)
            entries = ", ".join(facts.get("entries", {"python": MAIN}))
            yield {"name": folder.name, "entries": entries, "description": text}


def library_source(name: str) -> Path | None:
    """The main module of an inferlet of the library; None if there is none in Python."""
    if not name.isidentifier() or len(name) > 64:  # no file has a longer one
        return None
    folder = shipped_folder("inferlets") / name
    source = folder / _facts(folder).get("entries", {"python": MAIN}).get("python", "")
    return source if source.is_file() else None


def _facts(folder: Path) -> dict[str, Any]:
    described = folder / DESCRIPTION
    return tomllib.loads(described.read_text(encoding="utf-8-sig")) if described.is_file() else {}


def _first_line(main: Path) -> str:
    doc = ast.get_docstring(ast.parse(main.read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0].rstrip(".")
