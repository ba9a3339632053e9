"""All generated files of the repository."""

from __future__ import annotations

from collections.abc import Callable

from codegen import (
    config_file,
    device_language,
    host_signatures,
    js_raw,
    python_raw,
    rust_conformance,
    rust_host,
)
from codegen.source import REPOSITORY

# Path of each generated file, and the function that returns its text. The order does not matter.
OUTPUTS: dict[str, Callable[[], str]] = {
    "control/pie_control/api/signatures.py": host_signatures.render,
    "docs/pie.toml": config_file.render,
    "sdk/js/src/awaited.ts": js_raw.render_awaited,
    "sdk/js/src/bindings.d.ts": js_raw.render_bindings,
    "sdk/js/src/raw.ts": js_raw.render_raw,
    "sdk/js/src/sampler_parameters.ts": device_language.render_js_parameters,
    "sdk/python/inferlet/_awaited.py": python_raw.render_awaited,
    "sdk/python/inferlet/_bindings.py": python_raw.render_bindings,
    "sdk/python/inferlet/_device_words.py": device_language.render_words,
    "sdk/python/inferlet/_sampler_parameters.py": device_language.render_parameters,
    "sdk/python/inferlet/_sampler_rules.py": device_language.render_rules,
    "sdk/python/inferlet/raw/__init__.py": python_raw.render_raw,
    "sdk/rust/inferlet/src/host.rs": rust_host.render,
    "tests/conformance/rust/src/functions.rs": rust_conformance.render,
}


def stale() -> dict[str, str]:
    """The text that each file should have, of those files that differ from it, by path."""
    wanted = {path: render() for path, render in OUTPUTS.items()}
    return {path: text for path, text in wanted.items() if _read(path) != text}


def write() -> list[str]:
    """Writes the files that are not up to date, and returns their paths."""
    changed = stale()
    for path, text in changed.items():
        file = REPOSITORY / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return list(changed)


def _read(path: str) -> str | None:
    file = REPOSITORY / path
    return file.read_text(encoding="utf-8") if file.exists() else None
