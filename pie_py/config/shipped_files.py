"""Where the files are that the package ships beside its Python code."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = {"wit": "sdk/wit", "rust": "sdk/rust", "js": "sdk/js", "inferlets": "inferlets"}


def shipped_folder(name: str) -> Path:
    """The folder `wit`, `rust` or `js` (guest SDKs) or `inferlets` (the library).

    A wheel carries them in `pie_py/_share`; an editable install reads them from the checkout.
    """
    installed = _PACKAGE / "_share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / _IN_CHECKOUT[name]
