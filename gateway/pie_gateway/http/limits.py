"""Limits of what one user may ask for: token buckets that fill within a minute."""

from __future__ import annotations

from collections.abc import Callable

from pie_gateway.problems import Problem

MINUTE = 60.0


class Bucket:
    """So much per minute; a full one is there at the start. It may be overdrawn."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def wait(self, wanted: float) -> float:
        """Seconds until there is as much as wanted, or as there can be; 0: there is."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most / MINUTE)
        self._at = now
        missing = min(wanted, self._most) - self._left
        return max(0.0, missing * MINUTE / self._most)

    def take(self, amount: float) -> None:
        """Takes out."""
        self._left -= amount


class UserLimits:
    """The limits of one user."""

    def __init__(
        self, requests: int | None, tokens: int | None, clock: Callable[[], float]
    ) -> None:
        """Takes how many of each per minute; None: any number."""
        self._requests = None if requests is None else Bucket(requests, clock)
        self._tokens = None if tokens is None else Bucket(tokens, clock)

    def take_request(self) -> None:
        """Counts a request.

        Raises:
            Problem: 429, with the seconds after which one is taken again.
        """
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None and (seconds := bucket.wait(1)):
                raise Problem(
                    429,
                    f"the limit of {what} per minute is reached; try again in {seconds:.1f} s",
                    code=f"{what}_per_minute",
                    retry_after=seconds + 0.5,
                )
        if self._requests is not None:
            self._requests.take(1)

    def take_tokens(self, count: int) -> None:
        """Counts tokens of prompts and answers, which are known only afterwards."""
        if self._tokens is not None:
            self._tokens.take(count)
