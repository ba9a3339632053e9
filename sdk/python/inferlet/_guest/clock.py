"""The `time` module on the host's clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from inferlet import raw

_c_localtime = time.localtime
_c_gmtime = time.gmtime
_c_strftime = time.strftime
_c_asctime = time.asctime

_RESOLUTION = 1e-9


def _time_ns() -> int:
    return raw.now()


def _time() -> float:
    return raw.now() / 1e9


def _monotonic_ns() -> int:
    return raw.monotonic_now()


def _monotonic() -> float:
    return raw.monotonic_now() / 1e9


def _sleep(seconds: float, /) -> None:
    """Suspends the whole inferlet, all its tasks; `await asyncio.sleep` suspends one."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    future = raw.sleep(int(seconds * 1e9))
    raw.wait([future])
    raw.take(future)


def _localtime(seconds: float | None = None, /) -> time.struct_time:
    return _c_localtime(_time() if seconds is None else seconds)


def _gmtime(seconds: float | None = None, /) -> time.struct_time:
    return _c_gmtime(_time() if seconds is None else seconds)


def _strftime(format: str, when: Any = None, /) -> str:  # noqa: A002 - the name in the library
    return _c_strftime(format, _localtime() if when is None else when)


def _asctime(when: Any = None, /) -> str:
    return _c_asctime(_localtime() if when is None else when)


def _ctime(seconds: float | None = None, /) -> str:
    return _c_asctime(_localtime(seconds))


def _clock_gettime_ns(clock: int, /) -> int:
    return _time_ns() if clock == getattr(time, "CLOCK_REALTIME", 0) else _monotonic_ns()


def _clock_gettime(clock: int, /) -> float:
    return _clock_gettime_ns(clock) / 1e9


def _clock_getres(clock: int, /) -> float:
    return _RESOLUTION


def _get_clock_info(name: str, /) -> SimpleNamespace:
    known = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    if name not in known:
        raise ValueError("unknown clock")
    return SimpleNamespace(
        implementation="host",
        monotonic=name != "time",
        adjustable=name == "time",
        resolution=_RESOLUTION,
    )


REPLACEMENTS: dict[str, Any] = {
    "time": _time,
    "time_ns": _time_ns,
    "monotonic": _monotonic,
    "monotonic_ns": _monotonic_ns,
    "perf_counter": _monotonic,
    "perf_counter_ns": _monotonic_ns,
    "process_time": _monotonic,
    "process_time_ns": _monotonic_ns,
    "thread_time": _monotonic,
    "thread_time_ns": _monotonic_ns,
    "sleep": _sleep,
    "localtime": _localtime,
    "gmtime": _gmtime,
    "strftime": _strftime,
    "asctime": _asctime,
    "ctime": _ctime,
    "clock_gettime": _clock_gettime,
    "clock_gettime_ns": _clock_gettime_ns,
    "clock_getres": _clock_getres,
    "get_clock_info": _get_clock_info,
}
