"""The committed table of functions is what the contract and the cases say."""

from __future__ import annotations

from support.doc_scripts import DOCS, load_script


def test_the_table_is_up_to_date() -> None:
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == load_script("make_api").render(), "run `python docs/make_api.py`"
