"""How many instances a user may launch in a second: a token bucket for each user."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.errors import ApiError

_FORGET = 64  # users, before users at rest are forgotten


class LaunchRates:
    """A user at rest has a second's launches at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Takes the clock, in seconds."""
        self._clock = clock
        self._next: dict[str, float] = {}  # by user: when all his launches are paid for

    def take(self, user: str, rate: float) -> None:
        """A user launches one more, of `rate` a second.

        Raises:
            ApiError: `limit-exceeded`, with the time to wait.
        """
        now, burst = self._clock(), max(1.0, 1 / rate)
        paid = self._next.get(user, 0.0)
        if paid > now + 2 * burst:  # nothing is paid for that far ahead: the clock has gone back
            paid = now
        paid = max(paid, now) + 1 / rate
        wait = paid - now - burst
        if wait > 1e-9:
            raise ApiError(
                "limit-exceeded",
                f"you have launched {rate:g} instances within a second, the most that one user may;"
                f" the next one may start in {wait * 1e3:.0f} ms",
            )
        self._next[user] = paid
        if len(self._next) > _FORGET:
            self._next = {each: at for each, at in self._next.items() if at > now}
