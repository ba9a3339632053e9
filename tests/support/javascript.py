"""What tests of JavaScript need: the runtime component, which npm's packages build once."""

from __future__ import annotations

import re
from functools import cache

import pytest

from pie_py.build import BuildError
from pie_py.build.javascript import runtime_component
from pie_py.config.server import ServerConfig

UNREACHABLE = re.compile(r"ENOTFOUND|ECONNREFUSED|ECONNRESET|EAI_AGAIN|ETIMEDOUT|ENETUNREACH")


def require_javascript() -> None:
    """Skips a test where npm's registry is out of reach; other faults of the build fail it."""
    missing = _missing()
    if missing is not None:
        pytest.skip(missing)


@cache
def _missing() -> str | None:
    try:
        runtime_component(ServerConfig().cache_folder)
    except BuildError as error:
        if UNREACHABLE.search(str(error)):
            return f"JavaScript inferlets are not tried: {error}"
        raise
    return None
