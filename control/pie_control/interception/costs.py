"""Times of swapping and recomputing tokens, as measured by the worker at load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

SATURATED = 0.75  # share of the best measured rate at which a batch counts as saturating the device


@dataclass(frozen=True, slots=True)
class Transfer:
    """Pages between pool and host: a fixed part and a rate."""

    seconds: float
    pages_per_second: float

    def time(self, pages: float) -> float:
        """Seconds that a transfer of pages takes."""
        return self.seconds + pages / self.pages_per_second if pages else 0.0

    def pages_within(self, seconds: float) -> int:
        """Most pages whose transfer takes no longer than this."""
        return max(0, math.floor((seconds - self.seconds) * self.pages_per_second))


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost model of one model on one machine (InferCept, section 4; see
    `docs/interception.md`).

    A forward of `n` inputs takes `fixed + linear·n + quadratic·n²` seconds if they are one
    sequence.
    """

    page_size: int
    fixed: float
    linear: float
    quadratic: float
    saturation: int  # S: inputs from which on a batch gives hardly more tokens per second
    decodes: tuple[tuple[int, float], ...]  # sequences, seconds of a step, ascending
    swap_out: Transfer | None  # None without host memory
    swap_in: Transfer | None

    @classmethod
    def measured(cls, facts: dict[str, Any]) -> Costs:
        """From the worker's `kv-costs`."""
        fixed, linear, quadratic = facts["prefill"]["fit"]
        tokens, seconds = facts["prefill"]["tokens"], facts["prefill"]["seconds"]
        rates = [n / t for n, t in zip(tokens, seconds, strict=True)]
        enough = SATURATED * max(rates)
        decode = facts["decode"]
        return cls(
            page_size=facts["page_size"],
            fixed=fixed,
            linear=linear,
            quadratic=quadratic,
            saturation=next(n for n, rate in zip(tokens, rates, strict=True) if rate >= enough),
            decodes=tuple(zip(decode["sequences"], decode["seconds"], strict=True)),
            swap_out=_transfer(facts["swap_out"], facts["page_bytes"]),
            swap_in=_transfer(facts["swap_in"], facts["page_bytes"]),
        )

    def step_time(self, sequences: int, inputs: int = 0) -> float:
        """Seconds of a step that decodes some sequences and computes further inputs beside them.

        Interpolated between what was measured; beyond it, in proportion to the last piece.
        """
        beside = self.linear * inputs
        if not sequences or not self.decodes:
            computed = sequences + inputs
            return self.fixed + self.linear * computed if computed else 0.0
        (low, start), *rest = self.decodes
        if sequences <= low or not rest:
            return start + beside
        for high, end in rest:
            if sequences <= high:
                break
            if (high, end) != rest[-1]:
                low, start = high, end
        more = (end - start) * (sequences - low) / (high - low)
        return max(start, start + more) + beside

    def recompute_time(self, tokens: float) -> float:
        """Seconds by which a context's computation, alone or in chunks, lengthens other steps."""
        return self.linear * tokens + self.quadratic * tokens * tokens

    def forward_time(self, tokens: float) -> float:
        """Seconds of a forward that computes a context, alone."""
        return self.fixed + self.recompute_time(tokens)

    def chunk(self, sequences: int) -> int:
        """Tokens to recompute beside a running batch: what it leaves of the device."""
        return max(self.saturation - sequences, 1)

    def pages(self, tokens: float) -> int:
        """Pages that hold as many tokens."""
        return math.ceil(tokens / self.page_size)

    def swap_time(self, tokens: float) -> float:
        """Seconds out and back in; infinite without host memory."""
        if self.swap_out is None or self.swap_in is None:
            return math.inf
        pages = self.pages(tokens)
        return self.swap_out.time(pages) + self.swap_in.time(pages)


def _transfer(facts: dict[str, float] | None, page_bytes: int) -> Transfer | None:
    if facts is None:
        return None
    return Transfer(facts["seconds"], facts["bytes_per_second"] / page_bytes)
