"""What the gateway measures of requests itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from pie_gateway.backend.events import End, Piece, Prompt
from pie_gateway.backend.observer import Observer

# Seconds; as fine as what a person or a plan of the worker can tell apart.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 10, 20, 40, 80)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
RECENT = 1000  # observations that percentiles are taken from
MOST_USERS = 100  # with counters of their own


class RequestMetrics:
    """Counters and histograms of generations and of HTTP."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        """Registers the metrics; the clock counts seconds."""
        self.clock = clock
        model = ("model_name",)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, model, buckets=buckets, registry=registry)

        self.first = histogram(
            "pie_time_to_first_token_seconds", "From the launch to the first text", _FIRST
        )
        self.between = histogram(
            "pie_inter_token_latency_seconds", "Between two texts of a choice", _BETWEEN
        )
        self.whole = histogram(
            "pie_e2e_request_latency_seconds", "From the launch to the end", _WHOLE
        )
        self.prompt_length = histogram("pie_request_prompt_tokens", "Tokens of prompts", _TOKENS)
        self.length = histogram("pie_request_generation_tokens", "Tokens of choices", _TOKENS)
        self.prompt_tokens = Counter(
            "pie_prompt_tokens", "Tokens of prompts", model, registry=registry
        )
        self.tokens = Counter("pie_generation_tokens", "Tokens generated", model, registry=registry)
        self.success = Counter(
            "pie_request_success",
            "Choices that have ended, by reason",
            (*model, "finished_reason"),
            registry=registry,
        )
        self.of_users = Counter(
            "pie_user_tokens", "Tokens of users' requests", ("user", "kind"), registry=registry
        )
        self.http = Counter(
            "pie_http_requests", "Requests", ("path", "method", "status"), registry=registry
        )
        self.recent_first: deque[float] = deque(maxlen=RECENT)
        self.recent_between: deque[float] = deque(maxlen=RECENT)
        self._users: set[str] = set()

    def generation(self, model: str, user: str, *, streams: bool) -> GenerationMeter:
        """Measures one generation, which begins now.

        Args:
            model: its name.
            user: who asks.
            streams: whether its text comes as it is generated: only then is known when.
        """
        if user not in self._users:
            if len(self._users) >= MOST_USERS:
                user = "other"
            self._users.add(user)
        return GenerationMeter(self, model, user, streams=streams)


class GenerationMeter(Observer):
    """Measures one generation."""

    def __init__(self, metrics: RequestMetrics, model: str, user: str, *, streams: bool) -> None:
        self._metrics = metrics
        self._model = model
        self._user = user
        self._streams = streams
        # Found once: there may be many pieces.
        self._first = metrics.first.labels(model)
        self._between = metrics.between.labels(model)
        self._tokens = metrics.tokens.labels(model)
        self._of_user = metrics.of_users.labels(user, "generation")
        self._started = metrics.clock()
        self._at: dict[int, float] = {}  # when each choice last went on

    def prompt(self, event: Prompt) -> None:
        """Counts the prompt."""
        self._metrics.prompt_tokens.labels(self._model).inc(event.tokens)
        self._metrics.prompt_length.labels(self._model).observe(event.tokens)
        self._metrics.of_users.labels(self._user, "prompt").inc(event.tokens)

    def piece(self, event: Piece) -> None:
        """Counts tokens and the time that they took."""
        if self._streams and event.tokens:
            self._note_time(event)
        self._tokens.inc(event.tokens)
        self._of_user.inc(event.tokens)

    def _note_time(self, event: Piece) -> None:
        now = self._metrics.clock()
        before = self._at.get(event.choice)
        if before is None:
            self._first.observe(now - self._started)
            self._metrics.recent_first.append(now - self._started)
        else:  # several tokens that come at once have each taken a part
            each = (now - before) / event.tokens
            self._between.observe(each)
            self._metrics.recent_between.append(each)
        self._at[event.choice] = now

    def end(self, event: End) -> None:
        """Counts the choice."""
        metrics = self._metrics
        metrics.success.labels(self._model, event.reason).inc()
        metrics.length.labels(self._model).observe(event.tokens)
        metrics.whole.labels(self._model).observe(metrics.clock() - self._started)
