"""A context: tokens whose keys and values stay in the server's KV pages, to be continued and forked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from inferlet import raw
from inferlet._ahead import retract
from inferlet._loop import done, ready
from inferlet._pages import addresses, share, spans
from inferlet._sequence import UNKNOWN, Sequence
from inferlet.chat import Conversation
from inferlet.device import DeviceSampler
from inferlet.errors import PieError
from inferlet.generation import Generator
from inferlet.grammar import Grammar
from inferlet.images import append_image
from inferlet.model import Model
from inferlet.sample import DISTRIBUTION_SIZE, Distribution, Sampler


class Context(Sequence):
    """A text that grows: prompts are filled in, tokens are generated, forks share what is there.

    ::

        ctx = Context(Model.load())
        ctx.fill("The capital of France is")
        text = await ctx.generate(Sampler.argmax(), max_tokens=8).collect_text()

    What is filled in waits in a buffer until `flush` or the next generation, which runs it through
    the model. Full pages are never written again, so forks share them and copy only the last,
    partial page, when they first write to it. Commands of different contexts are batched together:
    run many with `asyncio.gather`; use one context from one task at a time.

    A context gives its pages back on `release`, at the end of a `with` block, or when it is no longer
    referenced.
    """

    __slots__ = ("_add_bos", "_chat")

    def __init__(
        self,
        model: Model,
        *,
        add_bos: bool = True,
        adapter: str | None = None,
        prefix_cache: bool = True,
    ) -> None:
        """Makes an empty context.

        Args:
            model: the model that is to continue it.
            add_bos: whether `fill` starts an empty context with the model's beginning-of-sequence
                token, if its tokenizer does so (`model.bos_token`).
            adapter: LoRA adapter that everything goes through, one of `model.adapters`.
            prefix_cache: whether to begin with what this user's inferlets have computed of the same
                text, and to let them find what is computed here. Full pages then can't be changed by
                functions of `raw`.
        """
        super().__init__(model, adapter, prefix_cache)
        self._add_bos = add_bos
        self._chat = Conversation(model)

    # What is in it

    @property
    def seq_len(self) -> int:
        """Tokens in the pages; `buffer` comes on top."""
        return self._length

    @property
    def tokens(self) -> list[int]:
        """All tokens, buffered ones included. Those of an opened context are -1."""
        self._render()
        return self._tokens + self._pending

    def buffer(self) -> list[int]:
        """Tokens that wait for the next `flush` or generation."""
        self._render()
        return list(self._pending)

    def __len__(self) -> int:
        return self._length + len(self.buffer())

    def __repr__(self) -> str:
        return f"Context({self._model.name!r}, {self._length} tokens)"

    # Filling

    def fill(self, text: str) -> Context:
        """Appends text. Special tokens written in it are recognised."""
        self._render()
        tokens = self._model.tokenizer.encode(text)
        bos = self._model.bos_token
        empty = not self._length and not self._pending
        if self._add_bos and empty and bos is not None and tokens[:1] != [bos]:
            self._pending.append(bos)
        self._pending += tokens
        self._chat.unanswered = False
        return self

    def append(self, tokens: Iterable[int]) -> Context:
        """Appends tokens as they are."""
        self._render()
        self._pending += array("I", tokens)
        self._chat.unanswered = False
        return self

    async def image(self, data: bytes) -> None:
        """Appends an image file, a PNG or JPEG, after what is buffered, which it runs.

        It takes as many places as `images.tokens_of` says, and its tokens are -1. Which text a model
        wants around it is that model's affair.

        Raises:
            PieError: `unsupported` if the model reads text only, `invalid-argument` if the file can't
                be decoded (the context is as it was, flushed), `out-of-resources`.
        """
        await append_image(self, data)
        self._chat.unanswered = False

    def system(self, message: str) -> Context:
        """Appends a system message in the model's chat format."""
        return self._message("system", message)

    def user(self, message: str) -> Context:
        """Appends a user message in the model's chat format."""
        return self._message("user", message)

    def assistant(self, message: str) -> Context:
        """Appends an assistant message in the model's chat format (a turn of the past)."""
        return self._message("assistant", message)

    def cue(self) -> Context:
        """Appends what starts the assistant's turn. `generate` does so by itself after a message."""
        self._pending += self._chat.render(cue=True, started=len(self._tokens) + len(self._pending))
        return self

    def seal(self) -> Context:
        """Ends the assistant's turn with the model's stop token."""
        self._render()
        self._pending += self._model.stop_tokens[:1]
        self._chat.seal()
        return self

    def _message(self, role: str, content: str) -> Context:
        self._chat.add(role, content, self._tokens, self._pending)
        return self

    def _render(self) -> None:
        """Turns the messages that wait into tokens."""
        if self._chat.waiting:
            self._pending += self._chat.render(
                cue=False, started=len(self._tokens) + len(self._pending)
            )

    # Running the model

    async def flush(self) -> None:
        """Runs what is buffered through the model, and waits until it is in the pages.

        Raises:
            PieError: `out-of-resources` if there are not enough pages or embeds.
        """
        retract(self)
        self._render()
        await self._submit()
        await done(raw.synchronize(self._queue))
        self._completed()

    def generate(
        self,
        sampler: Sampler | DeviceSampler | None = None,
        *,
        max_tokens: int | None = None,
        stop: Iterable[int | str] | str | None = None,
        seed: int | None = None,
        grammar: Grammar | None = None,
        forced: bool = True,
        run_ahead: bool = True,
    ) -> Generator:
        """Continues the context.

        Args:
            sampler: how to choose tokens; greedy unless told. The server chooses, unless the program
                looks at each step or the model lacks the trait `sample`: then a `Sampler` chooses in
                the inferlet.
            max_tokens: most tokens to generate; up to the model's longest context unless told.
            stop: token ids and strings that end the generation, or one string; the model's stop
                tokens unless told. With any given, the model's own no longer apply unless listed:
                `stop=["END", *model.stop_tokens]`. They are not part of the output.
            seed: makes the choices repeatable; overrides the sampler's. It counts modulo 2^64.
            grammar: what the text has to look like; the server then chooses. Generation ends where
                the grammar does. With too few `max_tokens` the text is cut short.
            forced: whether tokens that the grammar leaves no choice of are taken without asking the
                model; it then runs several at once.
            run_ahead: whether the server is given each step before the token of the one before has
                arrived, so that the model does not wait for the inferlet. The output is the same; at
                a stop one step was in vain, of which nothing stays. Where each token is needed first
                (a grammar, a program that looks at each step) this makes no difference.

        Returns:
            A generator; see there for the ways to read it. Nothing runs before it is read. Reading
            raises PieError `invalid-argument` if the context is longer than the model's longest.
        """
        return Generator(
            self,
            sampler or Sampler.argmax(),
            max_tokens,
            stop,
            seed,
            grammar,
            forced=forced,
            run_ahead=run_ahead,
        )

    async def distribution(self, k: int = DISTRIBUTION_SIZE) -> Distribution:
        """The `k` most likely next tokens after all that is filled in.

        Raises:
            ValueError: if the context is empty.
        """
        self._render()
        future = self._next_dist(k) if self._is_quick() else await self._submit_and_ask(k)
        await ready(future)
        answer = raw.take_dist(future)
        self._completed()
        return Distribution(*answer)

    # Branching and keeping

    def fork(self) -> Context:
        """A second context with the same content, that shares the pages.

        The fork runs the last token anew when it generates: that gives it a hidden state of its own.

        Raises:
            ValueError: if the context is released.
        """
        if self._released:
            raise ValueError("the context is released")
        self._settle()
        other = Context(
            self._model,
            add_bos=self._add_bos,
            adapter=self._adapter,
            prefix_cache=self._prefix_cache,
        )
        other._cached = self._cached
        other._pages = self._pages[:]
        share(self._model._shared_pages, self._pages)
        other._length = self._length
        other._tokens = self._tokens[:]
        other._pending = self._pending[:]
        other._chat = self._chat.copy()
        other._borrowed = True
        other._rerun_last_token()
        return other

    def truncate(self, length: int) -> Context:
        """Keeps the first `length` tokens only.

        Chat messages that wait are rendered first: their tokens count, and stay if `length` covers
        them. The conversation is forgotten: the next message starts it anew.
        """
        if not 0 <= length <= len(self):
            raise ValueError(f"length {length} is outside this context of {len(self)} tokens")
        self._chat = Conversation(self._model)
        if length >= self._length:
            del self._pending[length - self._length :]
            if self._hidden or self._pending:
                return self
            self._settle()  # a fork whose own tokens are all cut has no hidden state of its own
        else:
            self._settle()
            self._pending = []
            self._set_length(length)
        self._rerun_last_token()
        return self

    def save(self, name: str, *, shared: bool = False) -> None:
        """Keeps the pages under a name, for `open` in this and other instances, until `delete`.

        Args:
            name: the name, unique among this user's.
            shared: whether other users may open it.

        Raises:
            ValueError: if something is buffered (`flush` first) or the context is empty.
            PieError: `already-exists`.
        """
        if self.buffer():
            raise ValueError("some tokens are not in the pages yet: `await ctx.flush()` first")
        if not self._pages:
            raise ValueError("an empty context can't be saved")
        retract(self)
        self._in_flight |= self._unseen  # what is written can't be saved
        self._settle()
        used = -(-self._length // self.page_size)
        raw.export_kvpage(self._queue, spans(self._pages[:used]), name, shared)
        self._borrowed = True

    @classmethod
    def open(cls, model: Model, name: str, *, adapter: str | None = None) -> Context | None:
        """A context with the content saved under a name, or None. The saved one stays as it is.

        Its tokens are not known, so something has to be filled in before it generates. Name the
        adapter that the saved one had.
        """
        context = cls(model, adapter=adapter)
        try:
            mapped = raw.import_kvpage(context._queue, name)
        except PieError as error:
            if error.code != "not-found":
                raise
            return None
        context._pages = addresses(mapped)
        context._length = sum(raw.kvpage_used(context._queue, mapped))
        context._tokens = [UNKNOWN] * context._length
        context._borrowed = True
        return context

    @classmethod
    def take(cls, model: Model, name: str) -> Context | None:
        """`open`, and `delete` the name."""
        context = cls.open(model, name)
        if context is not None:
            cls.delete(model, name)
        return context

    @staticmethod
    def delete(model: Model, name: str) -> None:
        """Withdraws a saved context. Contexts opened from it live on. Raises PieError `not-found`."""
        queue = raw.create_queue(model.name)
        try:
            raw.release_export(queue, name)
        finally:
            raw.destroy_queue(queue)

    @staticmethod
    def saved(model: Model) -> list[str]:
        """Names of the saved contexts that may be opened."""
        queue = raw.create_queue(model.name)
        try:
            return raw.list_exports(queue)
        finally:
            raw.destroy_queue(queue)

    # For the generator

    def _start_turn(self) -> None:
        """Renders what waits; after a message, the assistant's turn starts."""
        if self._chat.unanswered:
            self.cue()
