"""Counters and histograms of requests, which the gateway measures itself.

A token is counted in plain numbers; samples are made of them when Prometheus asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pie_gateway.backend.generation import Observer
from pie_gateway.backend.job import End, Piece, Prompt
from pie_py.config.turns import Turns

# Seconds; as fine as what a person or a plan of the worker can tell apart.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 10, 20, 40, 80)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
RECENT = 1000  # observations that percentiles are taken from
MOST_USERS = 100  # with counters of their own


class Buckets:
    """How often which values were seen."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Takes the upper bounds of all buckets but the last, which has none."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each bound, and how many values were not above it."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class ModelStats:
    """The counts of one model's generations."""

    def __init__(self) -> None:
        self.first = Buckets(_FIRST)
        self.between = Buckets(_BETWEEN)
        self.whole = Buckets(_WHOLE)
        self.prompt_length = Buckets(_TOKENS)
        self.length = Buckets(_TOKENS)
        self.prompt_tokens = 0
        self.tokens = 0
        self.success: Counter[str] = Counter()  # choices by why they have ended


_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelStats], Buckets]], ...] = (
    ("pie_time_to_first_token_seconds", "From the launch to the first text", lambda m: m.first),
    ("pie_inter_token_latency_seconds", "Between two texts of a choice", lambda m: m.between),
    ("pie_e2e_request_latency_seconds", "From the launch to the end", lambda m: m.whole),
    ("pie_request_prompt_tokens", "Tokens of prompts", lambda m: m.prompt_length),
    ("pie_request_generation_tokens", "Tokens of choices", lambda m: m.length),
)


class RequestMetrics(Collector):
    """Counters and histograms of generations and of HTTP."""

    def __init__(self, clock: Callable[[], float], turns: Turns | None = None) -> None:
        """Has counted nothing yet; the clock counts seconds, and the turns are this process's."""
        self.clock = clock
        self._turns = turns
        self.models: dict[str, ModelStats] = {}
        self.of_users: Counter[tuple[str, str]] = Counter()  # tokens by user and kind
        self.http: Counter[tuple[str, str, str]] = Counter()  # by path, method and status
        self.recent_first: deque[float] = deque(maxlen=RECENT)
        self.recent_between: deque[float] = deque(maxlen=RECENT)
        self._users: set[str] = set()

    def generation(self, model: str, user: str, *, streams: bool) -> GenerationMeter:
        """Measures a generation, from now; when text comes is known only if it `streams`."""
        if user not in self._users:
            if len(self._users) >= MOST_USERS:
                user = "other"
            self._users.add(user)
        return GenerationMeter(self, model, user, streams=streams)

    def collect(self) -> Iterable[Metric]:
        """All of it, for Prometheus."""
        models = self.models.items()
        for name, text, of in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=("model_name",))
            for model, stats in models:
                buckets = of(stats)
                family.add_metric((model,), buckets.cumulative, buckets.sum)
            yield family
        prompts = [((model,), stats.prompt_tokens) for model, stats in models]
        tokens = [((model,), stats.tokens) for model, stats in models]
        ends = [
            ((model, reason), count)
            for model, stats in models
            for reason, count in stats.success.items()
        ]
        users, requests = self.of_users.items(), self.http.items()
        by_end, by_path = ("model_name", "finished_reason"), ("path", "method", "status")
        yield counter("pie_prompt_tokens", "Tokens of prompts", ("model_name",), prompts)
        yield counter("pie_generation_tokens", "Tokens generated", ("model_name",), tokens)
        yield counter("pie_request_success", "Choices that have ended, by reason", by_end, ends)
        yield counter("pie_user_tokens", "Tokens of users' requests", ("user", "kind"), users)
        yield counter("pie_http_requests", "Requests", by_path, requests)
        if self._turns is not None:
            yield from long_turns("gateway", self._turns.long, self._turns.worst)


Counts: TypeAlias = Iterable[tuple[Sequence[str], float]]  # by values of labels


def counter(name: str, text: str, labels: Sequence[str], counts: Counts) -> Metric:
    """A counter with labels."""
    return _filled(CounterMetricFamily(name, text, labels=labels), counts)


def gauge(name: str, text: str, labels: Sequence[str], counts: Counts) -> Metric:
    """A gauge with labels."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), counts)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, counts: Counts) -> Metric:
    for values, count in counts:
        family.add_metric(values, count)
    return family


def long_turns(loop: str, count: int, worst: float) -> Iterable[Metric]:
    """The turns of a loop that were over their budget."""
    text = "Turns of the loop that all users share over 50 ms of its thread"
    yield counter(f"pie_{loop}_long_turns", text, (), [((), count)])
    yield GaugeMetricFamily(f"pie_{loop}_longest_turn_seconds", "The longest of those", worst)


class GenerationMeter(Observer):
    """Measures one generation."""

    def __init__(self, metrics: RequestMetrics, model: str, user: str, *, streams: bool) -> None:
        self._metrics = metrics
        self._model = metrics.models.setdefault(model, ModelStats())
        self._of_user = user, "generation"
        self._of_prompt = user, "prompt"
        self._streams = streams
        self._started = metrics.clock()
        self._at: dict[int, float] = {}  # when each choice last went on

    def prompt(self, event: Prompt) -> None:
        """Counts the prompt."""
        self._model.prompt_tokens += event.tokens
        self._model.prompt_length.observe(event.tokens)
        self._metrics.of_users[self._of_prompt] += event.tokens

    def piece(self, event: Piece) -> None:
        """Counts tokens and the time that they took."""
        if self._streams and event.tokens:
            now = self._metrics.clock()
            before = self._at.get(event.choice)
            if before is None:
                self._model.first.observe(now - self._started)
                self._metrics.recent_first.append(now - self._started)
            else:  # several tokens that come at once have each taken a part
                each = (now - before) / event.tokens
                self._model.between.observe(each)
                self._metrics.recent_between.append(each)
            self._at[event.choice] = now
        self._model.tokens += event.tokens
        self._metrics.of_users[self._of_user] += event.tokens

    def end(self, event: End) -> None:
        """Counts the choice."""
        self._model.success[event.reason] += 1
        self._model.length.observe(event.tokens)
        self._model.whole.observe(self._metrics.clock() - self._started)
