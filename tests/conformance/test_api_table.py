"""The committed table of functions is what the contract and the cases say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == module.render(), "run `python docs/make_api.py`"
