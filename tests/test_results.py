"""The measured tables in `docs/benchmarks.md` are those of the records beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_page_holds_what_the_records_say() -> None:
    spec = importlib.util.spec_from_file_location("make_results", DOCS / "make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() == (DOCS / "benchmarks.md").read_text(encoding="utf-8"), (
        "python docs/make_results.py writes it anew"
    )
