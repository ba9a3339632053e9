"""The measured tables in `docs/benchmarks.md` are those of the records beside it."""

from __future__ import annotations

from support.doc_scripts import DOCS, load_script


def test_the_page_holds_what_the_records_say() -> None:
    written = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert written == load_script("make_results").render(), "run `python docs/make_results.py`"
