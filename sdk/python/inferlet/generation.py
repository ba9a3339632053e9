"""Generating tokens one after the other."""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import TYPE_CHECKING

from inferlet import raw
from inferlet._ahead import SCARCE
from inferlet._loop import ready
from inferlet._stream import StopStrings, TextDecoder
from inferlet.device import DeviceRun, DeviceSampler
from inferlet.errors import PieError
from inferlet.sample import DISTRIBUTION_SIZE, Distribution, Sampler

if TYPE_CHECKING:
    from inferlet.context import Context
    from inferlet.grammar import Grammar


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

    In all of these ways but the last the server chooses the tokens, and is given each step before the
    token of the one before has arrived (`run_ahead`). Whoever reads by steps has each token first, and a
    plain `Sampler` then chooses in the inferlet, with draws of its own.
    """

    __slots__ = (
        "_ahead_until",
        "_count",
        "_ctx",
        "_decoder",
        "_device",
        "_done",
        "_forced",
        "_grammar",
        "_max_tokens",
        "_random",
        "_run",
        "_run_ahead",
        "_sampler",
        "_size",
        "_started",
        "_stop_strings",
        "_stop_tokens",
        "_undecided",
    )

    def __init__(
        self,
        ctx: Context,
        sampler: Sampler | DeviceSampler,
        max_tokens: int | None,
        stop: Iterable[int | str] | str | None,
        seed: int | None,
        grammar: Grammar | None = None,
        *,
        forced: bool = True,
        run_ahead: bool = True,
    ) -> None:
        self._ctx = ctx
        if seed is not None:
            sampler = sampler.seeded(seed)
        # The server chooses, or the inferlet does, from what the server sends.
        self._device: DeviceSampler | None = None
        self._sampler = Sampler.argmax()
        if isinstance(sampler, DeviceSampler):
            self._device = sampler
        elif grammar is not None:
            self._device = sampler.on_device()
        else:
            self._sampler = sampler
        # Which of them is decided when a token is read: a program of steps looks at distributions.
        self._undecided = type(sampler) is Sampler and self._device is None
        self._run_ahead = run_ahead and grammar is None
        self._ahead_until = -1  # tokens so far with which the step after the next is still wanted
        self._run: DeviceRun | None = None  # of the server's choices, from the first step on
        self._grammar = grammar
        self._forced = forced
        self._size = self._sampler.size
        self._max_tokens: int | None = None
        if max_tokens is not None:
            self.max_tokens(max_tokens)
        own_seed = self._sampler.seed
        self._random = Random(None if own_seed is None else own_seed % 2**64)
        self._count = 0
        self._started = False
        self._done = False
        self._decoder: TextDecoder | None = None
        self._stop_strings: StopStrings | None = None
        self._stop_tokens: frozenset[int] = frozenset()
        self.stop(ctx.model.stop_tokens if stop is None else stop)

    # Options, as a chain

    def max_tokens(self, count: int) -> Generator:
        """Sets the most tokens to generate.

        Raises:
            ValueError: if it is negative.
        """
        if count < 0:
            raise ValueError(f"max_tokens {count} is negative")
        self._max_tokens = count
        return self

    def stop(self, stops: Iterable[int | str] | str) -> Generator:
        """Sets the token ids and strings that end the generation; a single string is one of them.

        They take the place of the model's own stop tokens, which no longer apply unless listed:
        `stop(["END", *model.stop_tokens])`.
        """
        stops = [stops] if isinstance(stops, str) else list(stops)
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

    @property
    def is_complete(self) -> bool:
        """Whether the text so far satisfies the grammar; always true without one.

        False after a step that was cancelled: then the place in the grammar is not known any more.
        """
        if self._grammar is None:
            return True
        return self._run is not None and self._run.is_complete

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
        await self._prepare()
        if self._done:
            raise StopAsyncIteration
        return GenStep(self)

    # One step

    def accept(self, tokens: Iterable[int]) -> list[int]:
        """Continues with tokens chosen by the program, as if they had been sampled.

        Returns those before a stop token, up to the end of a stop string and within `max_tokens`. Their text
        does not come again where text is read.

        Raises:
            ValueError: if the grammar does not allow one of them, or before the first step if the
                server chooses.
            RuntimeError: if a step within the grammar was cancelled before.
        """
        self._start()
        if self._device is not None:
            return self._accept_for_device(list(array("I", tokens)))
        return self._take_own(array("I", tokens))

    def _accept_for_device(self, tokens: list[int]) -> list[int]:
        if self._run is None:
            raise ValueError("accept tokens in a step: `async for step in generator`")
        stop = next(
            (i for i, token in enumerate(tokens) if token in self._stop_tokens), len(tokens)
        )
        wanted = tokens[: min(stop, (self._max_tokens or 0) - self._count)]
        self._run.check(wanted)
        accepted = self._take_own(tokens)
        self._run.note(accepted)
        return accepted

    def _take_own(self, tokens: Iterable[int]) -> list[int]:
        """Appends tokens of the program's choice up to the end of the generation."""
        accepted = []
        for token in tokens:
            if not self._take(token):
                break
            accepted.append(token)
            self._text_of(token)  # which looks for stop strings
        return accepted

    async def _prepare(self) -> None:
        """Makes the server's sampler, and compiles the grammar."""
        if self._device is None or self._run is not None or self._done:
            return
        grammar, ctx = self._grammar, self._ctx
        matcher = None if grammar is None else await grammar.matcher(ctx.model)
        self._run = DeviceRun(ctx, self._device, matcher, forced=self._forced)

    def _start(self) -> None:
        if self._started:
            return
        ctx = self._ctx
        ctx._start_turn()
        length, longest = len(ctx), ctx.model.max_position
        if length > longest:
            raise PieError(
                f"invalid-argument: the context has {length} tokens and the model takes {longest} at"
                " the most: shorten the prompt, or `truncate` the context"
            )
        self._started = True
        room = longest - length
        most = room if self._max_tokens is None else min(room, self._max_tokens)
        self._max_tokens = most
        self._done = most == 0
        if self._run_ahead:
            self._ahead_until = most - 2
        ctx._expect(most)
        if self._stop_strings is not None:
            self._decoder = self._make_decoder()

    def _make_decoder(self) -> TextDecoder:
        return TextDecoder(self._ctx.model.tokenizer.decode, self._ctx._before())

    async def _advance(self, text: bool) -> tuple[int, str] | None:
        """The next token, and the text that it completes if text is wanted; None at the end."""
        if not self._started:
            self._start()
        if self._done:
            return None
        if text and self._decoder is None:  # tokens may have been read before
            self._decoder = self._make_decoder()
        if self._undecided:
            self._decide()
        if self._device is None:
            tokens, probabilities = await self._ask(self._size)
            token = self._sampler.choose(tokens, probabilities, self._random)
        else:
            if self._run is None:
                await self._prepare()
            assert self._run is not None
            next_token = await self._run.next_token(ahead=self._count <= self._ahead_until)
            if next_token is None:
                self._done = True
                return None
            token = next_token
        taken = self._take(token)
        text_of_token = self._text_of(token) if taken and self._decoder is not None else ""
        if self._done and self._run is not None:
            self._run.retract()
        return (token, text_of_token) if taken else None

    def _decide(self) -> None:
        """Lets the server choose in the place of a plain sampler, if it can."""
        self._undecided = False
        ctx, sampler = self._ctx, self._sampler
        one = self._max_tokens is not None and self._max_tokens - self._count == 1
        if not ctx.model.samples or (one and sampler.temperature == 0):
            return  # one token is cheaper to ask for than to make a sampler for
        device = sampler.on_device()
        try:
            self._run = DeviceRun(ctx, device, None, forced=False)
        except PieError as error:
            if error.code not in SCARCE:
                raise
            return  # all samplers are in use, and this one can do without
        self._device = device

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

    __slots__ = ("_distribution", "logprob", "text", "tokens")

    def __init__(
        self,
        tokens: list[int],
        text: str,
        distribution: Distribution,
        logprob: float | None = None,
    ) -> None:
        self.tokens = tokens
        self.text = text  # empty unless the generator has stop strings
        self._distribution = distribution
        # The token's log-probability at temperature 1, if the server chose it from a distribution.
        self.logprob = logprob

    def distribution(self) -> Distribution:
        """The model's distribution, as much of it as the sampler looked at; on the server, as much as
        its `logprobs` asked for."""
        return self._distribution


class GenStep:
    """One step of a generation: `execute` it, or look at `distribution` and `accept` a token."""

    __slots__ = ("_generator",)

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def execute(self) -> Output:
        """Runs the model, samples a token, and appends it to the context."""
        generator = self._generator
        if generator._device is not None:
            return await self._execute_on_device(generator)
        tokens, probabilities = await generator._ask(generator._size)
        token = generator._sampler.choose(tokens, probabilities, generator._random)
        taken = generator._take(token)
        text = generator._text_of(token) if taken else ""
        if generator._done:
            text += generator._rest()
        return Output([token] if taken else [], text, Distribution(tokens, probabilities))

    async def _execute_on_device(self, generator: Generator) -> Output:
        await generator._prepare()
        assert generator._run is not None
        choice = await generator._run.choose()
        if choice is None:
            generator._done = True
            return Output([], generator._rest(), Distribution([], []))
        token, logprob, top_tokens, top_logprobs = choice
        taken = generator._take(token)
        text = generator._text_of(token) if taken else ""
        if generator._done:
            text += generator._rest()
        chances = [math.exp(chance) for chance in top_logprobs]
        return Output(
            [token] if taken else [],
            text,
            Distribution(top_tokens, chances),
            logprob,
        )

    async def distribution(self, k: int = DISTRIBUTION_SIZE) -> Distribution:
        """Runs the model and returns the `k` most likely tokens, without choosing.

        Follow it with `Generator.accept` to continue with a token of your own choice.
        """
        return Distribution(*await self._generator._ask(k))
