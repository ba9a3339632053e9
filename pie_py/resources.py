"""Where the files live that the package ships beside its Python code."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
_REPOSITORY = {"wit": "sdk/wit", "rust": "sdk/rust", "inferlets": "inferlets"}


def shared_folder(name: str) -> Path:
    """Returns the folder `wit`, `rust` (the guest SDK) or `inferlets` (the library).

    A wheel carries them in `pie_py/_share`; an editable install reads them from the checkout.
    """
    installed = _HERE / "_share" / name
    return installed if installed.is_dir() else _HERE.parent / _REPOSITORY[name]
