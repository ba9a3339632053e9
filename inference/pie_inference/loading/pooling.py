"""How a checkpoint makes one vector of a text, by sentence-transformers' files or a GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# llama.cpp's numbers of `pooling_type`; 0 leaves it open.
_GGUF = {0: "last", 1: "mean", 3: "last"}
_NAMES = {"mean": "mean", "lasttoken": "last"}
# Older files have a flag for each mode.
_FLAGS = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "lasttoken"}
_PLAIN = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Modules:
    """A module that `modules.json` of sentence-transformers names."""

    mode: str = ""  # of the pooling, by its name, "?" if it cannot be told; empty: there is none
    normalized: bool = False
    others: tuple[str, ...] = ()  # kinds of modules that are not computed here


def read_modules(folder: Path) -> Modules:
    """The modules of a folder; of one without the file there are none."""
    modules = [each for each in read(folder / "modules.json", list) if isinstance(each, dict)]
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    mode = ""
    if "Pooling" in kinds:
        path = str(modules[kinds.index("Pooling")].get("path", ""))
        mode = _mode(read(folder / path / "config.json", dict))
    others = tuple(kind for kind in kinds if kind not in _PLAIN)
    return Modules(mode, "Normalize" in kinds, others)


def made_to_embed(folder: Path, facts: Mapping[str, Any]) -> bool:
    """True if a checkpoint says how its vectors are made; others are for text."""
    return bool(facts.get("pooling_type")) or (folder / "modules.json").is_file()


def pooling(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """`last` or `mean`, of a decoder; `last` where a checkpoint says nothing, and None where it
    wants what is not computed here.
    """
    if facts.get("is_causal") is False or facts.get("use_bidirectional_attention"):
        return None
    if "pooling_type" in facts:
        return _GGUF.get(facts["pooling_type"])
    found = read_modules(folder)
    if found.others:
        return None
    return _NAMES.get(found.mode) if found.mode else "last"


def _mode(config: dict[str, Any]) -> str:
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if not on and "pooling_mode" in config:
        return str(config["pooling_mode"])
    return _FLAGS.get(on[0].removeprefix("pooling_mode_"), "?") if len(on) == 1 else "?"


def read(file: Path, kind: type[Any]) -> Any:
    """A file's object; empty if it lacks or is damaged."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, kind) else kind()
    return kind()
