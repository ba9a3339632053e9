"""The program that writes the calls which a benchmark or a test gives it: `guests/forced.py`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pie_py.build.modules import MAIN, read_modules
from pie_py.config.shipped_files import shipped_folder
from pie_py.wire.modules import pack

GUEST = Path(__file__).with_name("guests") / "forced.py"


@cache
def forced_program() -> bytes:
    """It with AsyncLM's modules, which lie in another folder."""
    main = shipped_folder("inferlets") / "async_function_calling" / MAIN
    _, *modules = read_modules(main).items()
    return pack({MAIN: GUEST.read_bytes(), **dict(modules)})
