"""Token buckets, and those of what one user may ask for, which fill within a minute."""

from __future__ import annotations

from collections.abc import Callable

from pie_gateway.problems import Problem

MINUTE = 60.0


class Bucket:
    """So much in each second, and so much at once; it is full at the start. It may be overdrawn."""

    __slots__ = ("_at", "_clock", "_left", "_most", "_rate")

    def __init__(self, rate: float, most: float, clock: Callable[[], float]) -> None:
        self._rate, self._most = rate, most
        self._clock = clock
        self._left = most
        self._at = clock()

    def left(self) -> float:
        """The level by now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left

    def is_full(self) -> bool:
        """True if nothing of it is missing."""
        return self.left() >= self._most

    def wait(self, wanted: float) -> float:
        """Seconds until there is as much as wanted, or as there can be; 0: there is."""
        missing = min(wanted, self._most) - self.left()
        return max(0.0, missing / self._rate)

    def take(self, amount: float) -> None:
        """Takes out, or puts back what is negative."""
        self._left -= amount


class UserLimits:
    """The limits of one user."""

    def __init__(
        self, requests: int | None, tokens: int | None, clock: Callable[[], float]
    ) -> None:
        """Takes how many of each per minute; None: any number."""
        self._requests = None if requests is None else Bucket(requests / MINUTE, requests, clock)
        self._tokens = None if tokens is None else Bucket(tokens / MINUTE, tokens, clock)

    def take_request(self) -> None:
        """Counts a request. Raises `Problem`: 429, with the seconds after which one is taken."""
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
