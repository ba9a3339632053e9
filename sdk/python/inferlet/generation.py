"""Generating tokens one after the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, overload

from inferlet import session
from inferlet._choice import Choosing, DeviceChoice
from inferlet._sequence import Sequence
from inferlet._stream import ROUND, StopStrings, TextDecoder, goes_round
from inferlet.errors import PieError
from inferlet.grammar import Grammar
from inferlet.raw._convert import u32_array
from inferlet.sample import DISTRIBUTION_SIZE, Distribution

MOST_END_CHARACTERS = 1024  # of stop strings that the server looks for


class Generator:
    """A generation under way; made by `Context.generate`. Read it in one of these ways::

        text = await generator.collect_text()
        value = await generator.collect_json(schema)
        tokens = await generator.collect_tokens()
        async for text in generator.stream_text(): ...
        text = await generator.send_text()  # to the client, as it comes
        async for token in generator.stream_tokens(): ...
        async for step in generator:  # one step at a time, as in the real Pie
            output = await step.execute()

    A generated token joins the context; the stop token that ends a generation does not. The text of
    a stop string is left out of the text, its tokens stay in the context.

    However it is read, the same seed gives the same tokens. The server chooses, and goes on by
    itself while the program reads (`run_ahead`), until the program looks at a step or accepts
    tokens of its own.

    A context has one generation at a time. If another one begins, this one can't go on.
    """

    went_round = False  # see `stop_round`

    def __init__(
        self,
        sequence: Sequence,
        begin: Callable[[], None],
        choosing: Choosing,
        max_tokens: int | None,
        stop: Iterable[int | str] | str | None,
        *,
        run_ahead: bool = True,
    ) -> None:
        """Nothing runs yet.

        Args:
            sequence: what is to be continued.
            begin: called before the first token, to append what starts the text.
            choosing: how tokens are chosen.
            max_tokens: the most to generate; up to the model's longest context if None.
            stop: token ids and strings that end it, or one string; the model's stop tokens if None.
            run_ahead: whether the server may go on by itself, token after token.

        Raises:
            ValueError: `max_tokens` is negative, or a token of `stop` is none of the model.
        """
        self._sequence = sequence
        self._begin = begin
        self._choosing = choosing
        self._chooser: DeviceChoice | None = None  # made for the first token
        self._run_ahead = run_ahead
        if max_tokens is not None and max_tokens < 0:
            raise ValueError(f"max_tokens {max_tokens} is negative")
        self._max_tokens = max_tokens
        self._number = 0  # among the generations of the sequence; 0 before it has begun
        self._count = 0
        self._done = False
        self._open_step = False  # a step was handed out, and has not been used
        self._by_hand = False  # the program looks at steps, or chooses tokens itself
        self._scores: list[float] | None = None  # log-probabilities that are collected
        self.versions: list[str] = []  # of the weights, of each token with a log-probability
        self._decoder: TextDecoder | None = None
        stops = sequence.model.stop_tokens if stop is None else stop
        stops = [stops] if isinstance(stops, str) else list(stops)
        if wrong := [each for each in stops if not isinstance(each, int | str)]:
            raise TypeError(f"stop: {wrong[0]!r} is neither a token's id nor a text")
        self._stop_tokens = frozenset(s for s in stops if isinstance(s, int))
        size = sequence.model.vocab_size
        if unknown := [each for each in self._stop_tokens if not 0 <= each < size]:
            raise ValueError(f"stop: {unknown[0]} is outside the vocabulary (0 to {size - 1})")
        strings = [s for s in stops if isinstance(s, str)]
        self._stop_strings = StopStrings(strings) if strings else None
        self._round: str | None = None  # the text's end, if it may not go round

    def stop_round(self) -> Generator:
        """Ends the generation when its text goes round: when nothing but one phrase has come for
        about 1000 characters. `went_round` tells that it did.
        """
        self._round = ""
        return self

    # State

    @property
    def tokens_generated(self) -> int:
        """Tokens so far."""
        return self._count

    @property
    def is_done(self) -> bool:
        """True if nothing more comes."""
        return self._done

    @property
    def is_complete(self) -> bool:
        """True if the text so far satisfies the grammar; always true without one.

        False after a step that was cancelled: then the place in the grammar is not known any more.
        """
        if self._choosing.grammar is None:
            return True
        return self._chooser is not None and self._chooser.is_complete

    # Reading

    @overload
    async def collect_tokens(self, *, logprobs: Literal[False] = False) -> list[int]: ...

    @overload
    async def collect_tokens(self, *, logprobs: Literal[True]) -> tuple[list[int], list[float]]: ...

    async def collect_tokens(
        self, *, logprobs: bool = False
    ) -> list[int] | tuple[list[int], list[float]]:
        """All tokens; with `logprobs`, and the log-probability of each: of the model's own
        distribution, at temperature 1, before the sampler and masks. It is not a number for a
        token that a grammar has forced. `versions` has then the weights of each, as
        `Context.weights_version` tells them.

        Raises:
            ValueError: log-probabilities of what a `choose` of the program's own chooses.
        """
        tokens: list[int] = []
        scores = self._scores = [] if logprobs else None
        while part := await self._advance_far():
            tokens += part
        return tokens if scores is None else (tokens, scores)

    async def state(self) -> dict[str, Any]:
        """Values that the device program was given, by name, with its state after the last
        token: a later generation goes on with `program(**state)`.

        Raises:
            ValueError: no token was chosen yet, or not by a device program.
        """
        if self._chooser is None:
            raise ValueError("no device program has chosen a token of this generation")
        return await self._chooser.state()

    def put(self, **values: Any) -> None:
        """Gives the device program that chooses other values of some names, from the next token on:
        what changes goes on from there, what does not keeps the value.

        Raises:
            ValueError: no token was chosen yet, or not by a device program.
            PieError: `invalid-argument`: no such name, or a value of another kind or size.
        """
        if self._chooser is None:
            raise ValueError("no device program has chosen a token of this generation")
        self._chooser.put(values)

    async def collect_text(self) -> str:
        """All text."""
        begun = self._number
        if (whole := await self._whole_text(to_client=False)) is not None:
            return whole
        if self._reads_text or begun:
            return "".join([text async for text in self.stream_text()])
        # The text is not read before its end: decode it once.
        decoder = self._make_decoder()
        return decoder.feed_all(await self.collect_tokens())

    async def collect_json(self, schema: Mapping[str, Any] | bool | str | None = None) -> Any:
        """All text, read as JSON.

        Args:
            schema: of JSON, as an object or its text, to which the text is held, `strict`; without
                one, it is held to the generation's own grammar, or else to a JSON object.

        Raises:
            ValueError: `max_tokens` came before the end of the text; or it is no JSON, as the
                generation's own grammar allows; or it has a grammar of its own beside the schema.
            RuntimeError: the generation has begun.
        """
        if schema is not None or self._choosing.grammar is None:
            self._hold_to(
                Grammar.json() if schema is None else Grammar.json_schema(schema, strict=True)
            )
        text = await self.collect_text()
        if not self.is_complete:
            raise ValueError(
                f"the JSON was cut off after {self._count} tokens, its end has not come: give"
                f" `max_tokens` more than {self._count}. It begins {text[:200]!r}"
            )
        return json.loads(text)

    def _hold_to(self, grammar: Grammar) -> None:
        """Gives a generation that has not begun its grammar."""
        if self._number:
            raise RuntimeError("the generation has begun: read all of it by `collect_json`")
        if self._choosing.grammar is not None:
            raise ValueError("the generation has a grammar: call `collect_json()` without a schema")
        self._choosing = replace(self._choosing, grammar=grammar)
        self._run_ahead = False  # the server needs each token before it can say what may follow

    async def send_text(self) -> str:
        """Sends the text to the client as it comes, as `session.send` of each piece; all of it.

        The server does so by itself where it goes on by itself, and waits while the client does not
        read; the inferlet is woken at the end. Cancelled then, the context is as it was before.
        """
        if (whole := await self._whole_text(to_client=True)) is not None:
            return whole
        pieces = []
        async for text in self.stream_text():
            session.send(text)
            pieces.append(text)
        return "".join(pieces)

    async def _whole_text(self, *, to_client: bool) -> str | None:
        """All text, read by the server; None if it cannot, as where each token is needed first."""
        ends = () if self._stop_strings is None else self._stop_strings.stops
        if self._number or self._round is not None or sum(map(len, ends)) > MOST_END_CHARACTERS:
            return None
        self._start()
        if self._done:
            return ""
        self._check_turn()
        self._sequence.choosing = True  # keeps other generations of the context out
        try:
            chooser = await self._decide()
            whole = await chooser.whole_text(
                self._most(), self._stop_tokens, ends, to_client=to_client
            )
        finally:
            self._sequence.choosing = False
        if whole is None:
            return None
        self._decoder = None  # the text is read
        self._join(whole[0])
        self._done = True
        chooser.end()
        return whole[1]

    async def stream_tokens(self) -> AsyncIterator[int]:
        """Tokens as they come."""
        try:
            while (step := await self._advance()) is not None:
                yield step[0]
        finally:
            self._pause()

    async def stream_text(self) -> AsyncIterator[str]:
        """Text as it comes, in pieces of whole characters."""
        self._start()
        if self._decoder is None and not self._done:  # tokens may have been read before
            self._decoder = self._make_decoder()
        try:
            while (step := await self._advance()) is not None:
                if step[1]:
                    yield step[1]
        finally:
            self._pause()
        if rest := self._rest():
            yield rest

    def __aiter__(self) -> Generator:
        return self

    async def __anext__(self) -> GenStep:
        """Raises RuntimeError if the step before was neither executed nor followed by `accept`."""
        if not self._number:
            self._start()
        if self._chooser is None and not self._done:
            self._check_turn()
            self._sequence.choosing = True
            try:
                await self._decide()
            finally:
                self._sequence.choosing = False
        if self._done:
            raise StopAsyncIteration
        if self._open_step:
            raise RuntimeError(
                "the step before did nothing, so the loop would never end: in each step, either"
                " `await step.execute()` or pass tokens to `generator.accept`"
            )
        self._open_step = True
        return GenStep(self)

    # One step

    def accept(self, tokens: Iterable[int]) -> list[int]:
        """Continues with tokens chosen by the program, as if they had been sampled.

        Returns those before a stop token, up to the end of a stop string and within `max_tokens`.
        Their text does not come again where text is read.

        Raises:
            ValueError: the grammar does not allow one of them, or there was no step yet and the
                server chooses.
            RuntimeError: a step within the grammar was cancelled before, or another generation of
                the context has begun.
        """
        self._start()
        self._check_turn()
        self._open_step = False
        self._by_hand = True
        tokens = u32_array(tokens).tolist()
        chooser = self._chooser
        if chooser is not None:
            chooser.check(self._wanted(tokens))
        elif self._choosing.on_server:
            raise ValueError("accept tokens in a step: `async for step in generator`")
        accepted = []
        for token in tokens:
            if self._take(token) is None:
                break
            accepted.append(token)
        if chooser is not None:
            chooser.note(accepted)
        return accepted

    def _wanted(self, tokens: list[int]) -> list[int]:
        """The tokens before a stop token, within `max_tokens`."""
        stops = self._stop_tokens
        stop = next((i for i, token in enumerate(tokens) if token in stops), len(tokens))
        return tokens[: min(stop, (self._max_tokens or 0) - self._count)]

    def _start(self) -> None:
        """Begins the generation, with its first token or before."""
        if self._number:
            return
        sequence = self._sequence
        self._check_turn()
        self._begin()
        # Of positions: of a context with dropped tokens they go on where they were.
        length, longest = len(sequence) + sequence.shift, sequence.model.max_position
        if length > longest:
            raise PieError(
                f"invalid-argument: the context has {length} tokens and the model takes {longest}"
                " at the most: shorten the prompt, or `truncate` the context"
            )
        sequence.generation += 1
        self._number = sequence.generation
        room = longest - length
        most = room if self._max_tokens is None else min(room, self._max_tokens)
        self._max_tokens = most
        self._done = most == 0
        sequence.expect(most)
        if self._reads_text:
            self._decoder = self._make_decoder()

    @property
    def _reads_text(self) -> bool:
        """True if the text says where the generation ends."""
        return self._stop_strings is not None or self._round is not None

    def _check_turn(self) -> None:
        """Refuses to mix this generation with another one, or with itself."""
        if self._sequence.choosing:
            raise RuntimeError(
                "a generation of this context is under way: wait for its token, or generate on"
                " `ctx.fork()`, which may go on at the same time"
            )
        if self._number and self._number != self._sequence.generation:
            raise RuntimeError(
                "another generation of this context has begun since, so this one can't go on:"
                " generate on `ctx.fork()` where both are wanted"
            )

    async def _decide(self) -> DeviceChoice:
        """Makes the chooser, for the first token."""
        chooser = await self._choosing.chooser(self._sequence)
        self._chooser = chooser
        return chooser

    async def _advance(self) -> tuple[int, str] | None:
        """The next token and the text that it completes, if text is read; None at the end."""
        if not self._number:
            self._start()
        if self._done:
            return None
        sequence = self._sequence
        if sequence.choosing or self._number != sequence.generation:
            self._check_turn()
        sequence.choosing = True  # keeps other generations of the context out
        try:
            chooser = self._chooser or await self._decide()
            token = await chooser.next_token(self._most(), self._stop_tokens)
        finally:
            sequence.choosing = False
        text = self._take(token)
        if self._scores is not None and text is not None:
            self._note_scores(chooser, 1, 1)
        if self._done:
            chooser.end()
        return None if token is None or text is None else (token, text)

    async def _advance_far(self) -> list[int]:
        """As many of the next tokens as come at once; none at the end."""
        self._start()
        if self._decoder is not None or self._done:
            step = await self._advance()
            return [] if step is None else [step[0]]
        self._check_turn()
        sequence = self._sequence
        sequence.choosing = True  # keeps other generations of the context out
        try:
            chooser = self._chooser or await self._decide()
            tokens = await chooser.next_tokens(self._most(), self._stop_tokens)
        finally:
            sequence.choosing = False
        joined = self._join(tokens)
        if self._scores is not None and joined:
            self._note_scores(chooser, len(tokens), len(joined))
        if self._done:
            chooser.end()
        return joined

    def _join(self, tokens: list[int]) -> list[int]:
        """Notes tokens of which all but the last are in the context; those that belong to it."""
        self._count += len(tokens[:-1])
        if self._take(tokens[-1] if tokens else None) is None:
            return tokens[:-1]
        return tokens

    def _note_scores(self, chooser: DeviceChoice, count: int, kept: int) -> None:
        """Collects what is told of the first `kept` of the last tokens."""
        assert self._scores is not None
        logprobs, versions = chooser.scores(count)
        self._scores += logprobs[:kept]
        self.versions += versions[:kept]

    def _most(self) -> int:
        """Tokens that the server may go on to by itself."""
        return (self._max_tokens or 0) - self._count if self._run_ahead else 1

    def _pause(self) -> None:
        """The program reads no further for now: the server need not go on."""
        if self._chooser is not None and self._number == self._sequence.generation:
            self._chooser.end()

    async def _execute(self) -> Output:
        """One step, with all that is known of its token."""
        self._open_step = False
        chooser, sequence = self._chooser, self._sequence
        assert chooser is not None  # since the first step was handed out
        if sequence.choosing or self._number != sequence.generation:
            self._check_turn()
        seen = logprob = None
        sequence.choosing = True  # keeps other generations of the context out
        try:
            if self._by_hand or chooser.tells:
                token, seen, logprob = await chooser.choose()
            else:  # the server goes on by itself
                token = await chooser.next_token(self._most(), self._stop_tokens)
        finally:
            sequence.choosing = False
        text = self._take(token)
        tokens = [] if token is None or text is None else [token]
        rest = self._rest() if self._done else ""
        return Output(tokens, (text or "") + rest, seen, logprob)

    async def _look(self, k: int) -> Distribution:
        """The distribution of the next token: the program may choose by hand from now on."""
        self._by_hand = True
        self._pause()
        assert self._chooser is not None  # since the first step was handed out
        return await self._chooser.look(k)

    def _take(self, token: int | None) -> str | None:
        """Appends a token to the context, unless it ends the generation.

        Returns:
            The text that it completes, empty where no text is read; None if it was not appended.
        """
        if self._done:
            return None
        if token is None or token in self._stop_tokens:
            self._done = True
            return None
        for sequence in (self._sequence, *self._choosing.beside):
            sequence.pending.append(token)
        self._count += 1
        if self._count == self._max_tokens:
            self._done = True
        if self._decoder is None:
            return ""
        text = self._decoder.feed(token)
        if self._stop_strings is not None:
            text, found = self._stop_strings.feed(text)
            if found:
                self._done = True
                self._decoder = None
        if self._round is not None:
            self._round = (self._round + text)[-2 * ROUND :]
            self.went_round = goes_round(self._round)
            self._done |= self.went_round
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

    def _make_decoder(self) -> TextDecoder:
        return TextDecoder(self._sequence.model.tokenizer.decode, self._sequence.tail())


class Output:
    """A step's tokens (none, if a stop token came) and the text they complete.

    Attributes:
        tokens: one, or none at the end.
        text: empty unless the generator has stop strings.
        logprob: the token's log-probability at temperature 1, if the sampler's `logprobs` asked for
            any.
    """

    __slots__ = ("_distribution", "logprob", "text", "tokens")

    def __init__(
        self,
        tokens: list[int],
        text: str,
        distribution: Distribution | None = None,
        logprob: float | None = None,
    ) -> None:
        self.tokens = tokens
        self.text = text
        self.logprob = logprob
        self._distribution = distribution

    def distribution(self) -> Distribution:
        """The most likely tokens, as many as the sampler's `logprobs` asked for; the 256 that a
        `choose` of one's own looked at."""
        return Distribution([], []) if self._distribution is None else self._distribution


class GenStep:
    """One step of a generation: `execute` it, or look at `distribution` and `accept` a token."""

    __slots__ = ("_generator",)

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def execute(self) -> Coroutine[Any, Any, Output]:
        """Await it: runs the model, samples a token, and appends it to the context.

        Raises:
            RuntimeError: another generation of the context is under way, or has begun since.
        """
        return self._generator._execute()

    def distribution(self, k: int = DISTRIBUTION_SIZE) -> Coroutine[Any, Any, Distribution]:
        """Await it: runs the model and returns the `k` most likely tokens, without choosing.

        Follow it with `Generator.accept` to continue with a token of your own choice.
        """
        return self._generator._look(k)
