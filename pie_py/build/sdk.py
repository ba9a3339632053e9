"""The SDKs of guests, with what of them is generated."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pie_py.build import BuildError
from pie_py.config.shipped_files import shipped_folder

_CHECKOUT = Path(__file__).resolve().parents[2]


def sdk_folder(language: str) -> Path:
    """The folder of the SDK for `python`, `js` or `rust`.

    A wheel has the generated files; those of a checkout are made first, unless they are up to date.

    Raises:
        BuildError: if there is no package `inferlet`.
    """
    folder = _python() if language == "python" else shipped_folder(language)
    if folder.is_relative_to(_CHECKOUT / "sdk"):
        from codegen import ensure

        ensure()
    return folder


def _python() -> Path:
    spec = importlib.util.find_spec("inferlet")
    if spec is None or spec.origin is None:
        raise BuildError("the inferlet package is not installed beside pie_py; reinstall pie-py")
    return Path(spec.origin).resolve().parent
