"""Files that the package ships beside its Python code; one tells the version of the contract."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = {
    **{name: f"sdk/{name}" for name in ("wit", "rust", "js")},
    **{name: f"build/{name}" for name in ("runtimes", "kernels")},  # `hatch_build.py` makes them
}


def shipped_folder(name: str) -> Path:
    """The folder `wit`, `rust` or `js` (guest SDKs), `inferlets` (the library), `docs`, `runtimes`
    or `kernels`; the last two may lack.

    A wheel carries them in `pie_py/_share`; an editable install reads them from the checkout.
    """
    installed = _PACKAGE / "_share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / _IN_CHECKOUT.get(name, name)


@cache
def contract_version() -> str:
    """Version of the WIT package `pie:inferlet` that this installation speaks, as `0.1.0`."""
    text = (shipped_folder("wit") / "inferlet.wit").read_text(encoding="utf-8")
    found = re.search(r"^package pie:inferlet@([0-9.]+);", text, re.MULTILINE)
    assert found is not None, "the contract's first statement names its version"
    return found.group(1)
