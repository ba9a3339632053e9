"""Generating tokens one after the other."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import TYPE_CHECKING

from inferlet import raw
from inferlet._loop import ready
from inferlet._stream import StopStrings, TextDecoder
from inferlet.sample import DISTRIBUTION_SIZE, Distribution, Sampler

if TYPE_CHECKING:
    from inferlet.context import Context


class Generator:
    """A generation under way; made by `Context.generate`. Read it in one of these ways::

        text = await generator.collect_text()
        tokens = await generator.collect_tokens()
        async for text in generator.stream_text(): ...
        async for token in generator.stream_tokens(): ...
        async for step in generator:  # one step at a time, as in the real Pie
            output = await step.execute()

    A generated token joins the context; the stop token that ends a generation does not. The text of
    a stop string is left out of the text, its tokens stay in the context.
    """

    __slots__ = (
        "_count",
        "_ctx",
        "_decoder",
        "_done",
        "_max_tokens",
        "_random",
        "_sampler",
        "_size",
        "_started",
        "_stop_strings",
        "_stop_tokens",
    )

    def __init__(
        self,
        ctx: Context,
        sampler: Sampler,
        max_tokens: int | None,
        stop: Iterable[int | str] | None,
        seed: int | None,
    ) -> None:
        if max_tokens is not None and max_tokens < 0:
            raise ValueError(f"max_tokens {max_tokens} is negative")
        self._ctx = ctx
        self._sampler = sampler
        self._size = sampler.size
        self._max_tokens = max_tokens
        self._random = Random(sampler.seed if seed is None else seed)
        self._count = 0
        self._started = False
        self._done = False
        self._decoder: TextDecoder | None = None
        self._stop_strings: StopStrings | None = None
        self._stop_tokens: frozenset[int] = frozenset()
        self.stop(ctx.model.stop_tokens if stop is None else stop)

    # Options, as a chain

    def max_tokens(self, count: int) -> Generator:
        """Sets the most tokens to generate."""
        self._max_tokens = count
        return self

    def stop(self, stops: Iterable[int | str]) -> Generator:
        """Sets the token ids and strings that end the generation."""
        stops = list(stops)
        self._stop_tokens = frozenset(s for s in stops if isinstance(s, int))
        strings = [s for s in stops if isinstance(s, str)]
        self._stop_strings = StopStrings(strings) if strings else None
        return self

    # State

    @property
    def tokens_generated(self) -> int:
        """Tokens so far."""
        return self._count

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes."""
        return self._done

    # Reading

    async def collect_tokens(self) -> list[int]:
        """All tokens."""
        tokens = []
        while (step := await self._advance(text=False)) is not None:
            tokens.append(step[0])
        return tokens

    async def collect_text(self) -> str:
        """All text."""
        return "".join([text async for text in self.stream_text()])

    async def stream_tokens(self) -> AsyncIterator[int]:
        """Tokens as they come."""
        while (step := await self._advance(text=False)) is not None:
            yield step[0]

    async def stream_text(self) -> AsyncIterator[str]:
        """Text as it comes, in pieces of whole characters."""
        while (step := await self._advance(text=True)) is not None:
            if step[1]:
                yield step[1]
        if rest := self._rest():
            yield rest

    def __aiter__(self) -> Generator:
        return self

    async def __anext__(self) -> GenStep:
        self._start()
        if self._done:
            raise StopAsyncIteration
        return GenStep(self)

    # One step

    def accept(self, tokens: Iterable[int]) -> list[int]:
        """Continues with tokens chosen by the program, as if they had been sampled.

        Returns those before a stop token and within `max_tokens`.
        """
        self._start()
        accepted = []
        for token in array("I", tokens):
            if not self._take(token):
                break
            accepted.append(token)
        return accepted

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        ctx = self._ctx
        ctx._start_turn()
        room = max(0, ctx.model.max_position - len(ctx))
        most = room if self._max_tokens is None else min(room, self._max_tokens)
        self._max_tokens = most
        self._done = most == 0
        ctx._expect(most)
        if self._stop_strings is not None:
            self._decoder = self._make_decoder()

    def _make_decoder(self) -> TextDecoder:
        return TextDecoder(self._ctx.model.tokenizer.decode, self._ctx._before())

    async def _advance(self, text: bool) -> tuple[int, str] | None:
        """The next token, and the text that it completes if text is wanted; None at the end."""
        if not self._started:
            self._start()
            if text and self._decoder is None:
                self._decoder = self._make_decoder()
        if self._done:
            return None
        tokens, probabilities = await self._ask(self._size)
        token = self._sampler.choose(tokens, probabilities, self._random)
        if not self._take(token):
            return None
        return token, self._text_of(token)

    async def _ask(self, k: int) -> tuple[list[int], list[float]]:
        ctx = self._ctx
        future = ctx._next_dist(k) if ctx._is_quick() else await ctx._submit_and_ask(k)
        await ready(future)
        answer = raw.take_dist(future)
        ctx._completed()
        return answer

    def _take(self, token: int) -> bool:
        """Appends a token to the context, unless it ends the generation."""
        if self._done:
            return False
        if token in self._stop_tokens:
            self._done = True
            return False
        self._ctx._pending.append(token)
        self._count += 1
        if self._count == self._max_tokens:
            self._done = True
        return True

    def _text_of(self, token: int) -> str:
        if self._decoder is None:
            return ""
        text = self._decoder.feed(token)
        if self._stop_strings is not None:
            text, found = self._stop_strings.feed(text)
            if found:
                self._done = True
                self._decoder = None
        return text

    def _rest(self) -> str:
        """Text that waited for more, at the end."""
        if self._decoder is None:
            return ""
        text = self._decoder.finish()
        self._decoder = None
        if self._stop_strings is not None:
            text, found = self._stop_strings.feed(text)
            if not found:
                text += self._stop_strings.finish()
        return text


class Output:
    """What a step gave: its tokens (none, if a stop token came) and the text they complete."""

    __slots__ = ("_distribution", "text", "tokens")

    def __init__(self, tokens: list[int], text: str, distribution: Distribution) -> None:
        self.tokens = tokens
        self.text = text  # empty unless the generator has stop strings
        self._distribution = distribution

    def distribution(self) -> Distribution:
        """The distribution that the token was chosen from, as much of it as the sampler looked at."""
        return self._distribution


class GenStep:
    """One step of a generation: `execute` it, or look at `distribution` and `accept` a token."""

    __slots__ = ("_generator",)

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def execute(self) -> Output:
        """Runs the model, samples a token, and appends it to the context."""
        generator = self._generator
        tokens, probabilities = await generator._ask(generator._size)
        token = generator._sampler.choose(tokens, probabilities, generator._random)
        accepted = generator.accept([token])
        text = generator._text_of(token) if accepted else ""
        return Output(accepted, text, Distribution(tokens, probabilities))

    async def distribution(self, k: int = DISTRIBUTION_SIZE) -> Distribution:
        """Runs the model and returns the `k` most likely tokens, without choosing.

        Follow it with `Generator.accept` to continue with a token of your own choice.
        """
        return Distribution(*await self._generator._ask(k))
