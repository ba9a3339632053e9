"""The guests of messaging, store and children, in both languages."""

from __future__ import annotations

from pathlib import Path

from pie_py.client.sync import Client
from support.rust_components import rust_component

LANGUAGES = ("python", "rust")
BOTH = [(a, b) for a in LANGUAGES for b in LANGUAGES]


def upload(client: Client, language: str) -> str:
    """The program `control` in a language; its content hash."""
    if language == "python":
        return client.upload(Path(__file__).parents[1] / "end_to_end/guests" / "control.py")
    return client.upload(rust_component("control_guests"), name="control-guests")
