"""Version of the contract between inferlets and the server."""

import re
from functools import cache

from pie_py.config.shipped_files import shipped_folder


@cache
def contract_version() -> str:
    """Version of the WIT package `pie:inferlet` that this installation speaks, as `0.1.0`."""
    text = (shipped_folder("wit") / "inferlet.wit").read_text(encoding="utf-8")
    found = re.search(r"^package pie:inferlet@([0-9.]+);", text, re.MULTILINE)
    assert found is not None, "the contract's first statement names its version"
    return found.group(1)
