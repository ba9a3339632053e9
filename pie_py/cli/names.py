"""Short names of models: what a person calls one that is served, or lies on this machine."""

from __future__ import annotations

from collections.abc import Iterable


def find_name(wanted: str, names: Iterable[str]) -> str | None:
    """The name that is meant: the same one, the same in any case and without its publisher and
    ending, or the only one that begins so. None if there is none, or several begin so.
    """
    there = list(names)
    if wanted in there:
        return wanted
    short = _short(wanted)
    same = [name for name in there if _short(name) == short]
    begun = same or [name for name in there if _short(name).startswith(short)]
    return begun[0] if len(begun) == 1 and short else None


def _short(name: str) -> str:
    return name.rpartition("/")[2].lower().removesuffix(".gguf")
