"""When commands that could be sent are sent: the paper's four policies (Pie, sections 6.1 and 7)."""

from __future__ import annotations

from typing import Protocol

from pie_py.config.scheduling import SchedulerConfig

# Guests that wait for their results send nothing more, so fewer than k commands may be all there will
# ever be. The paper does not say what its k-only does then; here an incomplete batch goes after this.
K_ONLY_PATIENCE = 0.05  # seconds


class Policy(Protocol):
    """Asked whenever the worker is idle. Times are seconds of one clock."""

    whole_plans: bool  # send all that is possible, many batches a plan; else one batch a plan
    batches: bool  # join commands; else one command a batch

    def ready(self, count: int, oldest: float, now: float) -> bool:
        """Whether to send `count` commands of a kind, the oldest queued at `oldest`."""
        ...

    def deadline(self, oldest: float) -> float | None:
        """When `ready` will hold without further commands; None if it does already."""
        ...


class Adaptive:
    """Work-conserving: an idle worker gets all there is."""

    whole_plans = True
    batches = True

    def ready(self, count: int, oldest: float, now: float) -> bool:
        """Always."""
        return True

    def deadline(self, oldest: float) -> float | None:
        """None."""
        return None


class Eager:
    """No batching: each command by itself, as soon as possible."""

    whole_plans = False
    batches = False

    def ready(self, count: int, oldest: float, now: float) -> bool:
        """Always."""
        return True

    def deadline(self, oldest: float) -> float | None:
        """None."""
        return None


class KOnly:
    """A batch once `k` commands of a kind wait, or the oldest has waited `K_ONLY_PATIENCE`."""

    whole_plans = False
    batches = True

    def __init__(self, k: int) -> None:
        self._k = k

    def ready(self, count: int, oldest: float, now: float) -> bool:
        """Whether `k` wait, or patience is at its end."""
        return count >= self._k or now >= oldest + K_ONLY_PATIENCE

    def deadline(self, oldest: float) -> float | None:
        """When patience ends."""
        return oldest + K_ONLY_PATIENCE


class TOnly:
    """A batch once the oldest command of a kind has waited `t`."""

    whole_plans = False
    batches = True

    def __init__(self, t_ms: float) -> None:
        self._seconds = t_ms / 1e3

    def ready(self, count: int, oldest: float, now: float) -> bool:
        """Whether `t` has passed."""
        return now >= oldest + self._seconds

    def deadline(self, oldest: float) -> float | None:
        """When `t` will have passed."""
        return oldest + self._seconds


def make_policy(config: SchedulerConfig) -> Policy:
    """The policy that the configuration names."""
    match config.policy:
        case "adaptive":
            return Adaptive()
        case "eager":
            return Eager()
        case "k-only":
            return KOnly(config.k)
        case "t-only":
            return TOnly(config.t_ms)
