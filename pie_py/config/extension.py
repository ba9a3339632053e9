"""Packages that extend a server: which one does, and its settings."""

from __future__ import annotations

from typing import Any

from pie_py.config.section import Section


class ExtensionConfig(Section):
    """Names the extension of a server. It checks its settings itself."""

    name: str  # of its entry point
    settings: dict[str, Any]  # as JSON has them
