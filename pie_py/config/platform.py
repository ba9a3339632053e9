"""Facts that not every system tells. Where one lacks, callers do without: nothing raises."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def c_function(name: str) -> Any:
    """A function of the C library; None if it has none of that name, or is not Linux's."""
    return (
        getattr(ctypes.CDLL(None, use_errno=True), name, None) if sys.platform == "linux" else None
    )


def cpu_facts() -> str:
    """The system's facts of the CPU, in the form of Linux's /proc/cpuinfo."""
    if sys.platform != "darwin":
        return proc("cpuinfo")
    asked = ["sysctl", "-a"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    brand = re.search(r"^machdep\.cpu\.brand_string: (.*)$", told, re.M)
    features = re.findall(r"^hw\.optional\.arm\.FEAT_(\w+): 1$", told, re.M)
    name = f"model name\t: {brand[1] if brand else platform.machine()}"
    return f"{name}\nFeatures\t: {' '.join(features).lower()}\n"


def proc(name: str) -> str:
    """A file that Linux has below /proc; empty elsewhere."""
    try:
        return (PROC / name).read_text(errors="surrogateescape")
    except OSError:
        return ""
