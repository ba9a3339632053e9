"""All generated files that are not kept in git, and when they are made."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from codegen import device_language, js_raw, python_raw, rust_conformance, rust_host
from codegen.source import REPOSITORY

# Path of each generated file, and the function that returns its text. The order does not matter.
OUTPUTS: dict[str, Callable[[], str]] = {
    "sdk/js/src/awaited.ts": js_raw.render_awaited,
    "sdk/js/src/bindings.d.ts": js_raw.render_bindings,
    "sdk/js/src/raw.ts": js_raw.render_raw,
    "sdk/js/src/sampler_parameters.ts": device_language.render_js_parameters,
    "sdk/python/inferlet/_generated/awaited.py": python_raw.render_awaited,
    "sdk/python/inferlet/_generated/bindings.py": python_raw.render_bindings,
    "sdk/python/inferlet/_generated/device_words.py": device_language.render_words,
    "sdk/python/inferlet/_generated/sampler_parameters.py": device_language.render_parameters,
    "sdk/python/inferlet/_generated/sampler_rules.py": device_language.render_rules,
    "sdk/python/inferlet/raw/_functions.py": python_raw.render_raw,
    "sdk/rust/inferlet/src/host.rs": rust_host.render,
    "tests/conformance/rust/src/functions.rs": rust_conformance.render,
}
# What their texts follow from.
SOURCES = (
    "codegen/*.py",
    "pie_py/build/wit.py",
    "pie_py/device_programs/**/*.py",
    "sdk/wit/*.wit",
)
_MADE = REPOSITORY / "codegen" / ".made"  # the digest after the last time


def ensure() -> list[str]:
    """Writes the generated files, unless they are as their sources made them, and returns the paths
    of those that changed. It needs nothing but the standard library, since it is a step of a build.

    Of several processes that need them at once, each may write them: they write the same.
    """
    if _MADE.is_file() and _MADE.read_text() == _digest():
        return []
    changed = []
    for path, render in OUTPUTS.items():
        text, file = render(), REPOSITORY / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            _write(path, text)
            changed.append(path)
    _write("codegen/.made", _digest())
    return changed


def _digest() -> str:
    """Hash of the generated files and of their sources."""
    digest = hashlib.sha256()
    sources = (file for pattern in SOURCES for file in REPOSITORY.glob(pattern))
    for file in sorted({*sources, *(REPOSITORY / path for path in OUTPUTS)}):
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{file.relative_to(REPOSITORY)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _write(path: str, text: str) -> None:
    """In one step: another process may read it meanwhile."""
    file = REPOSITORY / path
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(file)
