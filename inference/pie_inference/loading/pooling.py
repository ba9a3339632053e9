"""Which hidden states of a text its embedding is made of, as a checkpoint says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# llama.cpp's numbers of `pooling_type`; 0 leaves it open.
_GGUF = {0: "last", 1: "mean", 3: "last"}
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
_NAMES = {"mean": "mean", "lasttoken": "last"}
_PLAIN = ("Transformer", "Pooling", "Normalize")


def pooling(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """`last` or `mean`, by `modules.json` of sentence-transformers or a GGUF; `last` where a
    checkpoint says nothing, and None where it wants what is not computed here.
    """
    if facts.get("is_causal") is False or facts.get("use_bidirectional_attention"):
        return None
    if "pooling_type" in facts:
        return _GGUF.get(facts["pooling_type"])
    found: str | None = "last"
    with suppress(OSError):
        for module in _read(folder / "modules.json", list):
            kind = str(module.get("type", "")).rpartition(".")[2]
            if kind not in _PLAIN:
                return None
            if kind == "Pooling":
                found = _mode(_read(folder / str(module.get("path", "")) / "config.json", dict))
    return found


def _mode(config: dict[str, Any]) -> str | None:
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if not on and "pooling_mode" in config:
        return _NAMES.get(str(config["pooling_mode"]))
    return _MODES.get(on[0]) if len(on) == 1 else None


def _read(file: Path, kind: type[Any]) -> Any:
    """What a file holds; nothing if it is damaged. Raises `OSError` if it lacks."""
    with suppress(ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, kind) else kind()
    return kind()
