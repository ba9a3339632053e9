"""A context: tokens whose keys and values stay in the server's KV pages, to be continued and forked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from inferlet import _bindings, raw
from inferlet._ahead import Ahead, retract
from inferlet._loop import done, ready
from inferlet._pages import addresses, drop, extend, share, spans
from inferlet.chat import Conversation
from inferlet.device import DeviceSampler
from inferlet.errors import PieError
from inferlet.generation import Generator
from inferlet.grammar import Grammar
from inferlet.images import append_image
from inferlet.model import Model
from inferlet.sample import DISTRIBUTION_SIZE, Distribution, Sampler

UNKNOWN = -1  # a token of an opened context: its pages are known, its tokens are not


class Context:
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

    __slots__ = (
        "__weakref__",
        "_adapter",
        "_add_bos",
        "_ahead",
        "_borrowed",
        "_cached",
        "_chat",
        "_embed",
        "_hidden",
        "_in_flight",
        "_input_spans",
        "_length",
        "_limit",
        "_model",
        "_pages",
        "_pending",
        "_pins",
        "_prefix_cache",
        "_queue",
        "_released",
        "_samplers",
        "_spare",
        "_tokens",
        "_unseen",
    )

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
        self._released = True  # until there is something to release
        self._model = model
        self._add_bos = add_bos
        self._adapter = adapter
        self._queue = raw.create_queue(model.name)
        self._released = False
        self._embed: list[int] = []  # span of the embed with the last token's hidden state
        self._pages: list[int] = []
        self._length = 0  # tokens in the pages
        self._tokens: list[int] = []  # those tokens
        self._pending: list[int] = []  # tokens that follow, not in the pages yet
        self._prefix_cache = prefix_cache
        self._cached = 0  # pages that the server has been offered for others to find
        self._borrowed = False  # the last, partial page is shared or immutable: copy before writing
        self._pins: list[int] = []  # pages held until the copies from them are done
        self._hidden = False  # the embed holds the last token's hidden state
        self._in_flight = False  # commands are queued that nobody has seen the end of
        self._input_spans: tuple[int, list[int]] = (0, [])  # page count, spans of these
        self._samplers: set[int] = set()  # of generations under way
        self._ahead: Ahead | None = None  # a step at the server that nothing else here knows of
        self._unseen = False  # a step that was undone may still run, and write
        self._spare: list[int] = []  # span of the embed that such steps use in turn with the other
        self._limit = 0  # tokens that the generation under way may reach
        self._chat = Conversation(model)

    # What is in it

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self._model.page_size

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
        stop: Iterable[int | str] | None = None,
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
            stop: token ids and strings that end the generation; the model's stop tokens unless told.
                They are not part of the output.
            seed: makes the choices repeatable; overrides the sampler's.
            grammar: what the text has to look like; the server then chooses. Generation ends where
                the grammar does. With too few `max_tokens` the text is cut short.
            forced: whether tokens that the grammar leaves no choice of are taken without asking the
                model; it then runs several at once.
            run_ahead: whether the server is given each step before the token of the one before has
                arrived, so that the model does not wait for the inferlet. The output is the same; at
                a stop one step was in vain, of which nothing stays. Where each token is needed first
                (a grammar, a program that looks at each step) this makes no difference.

        Returns:
            A generator; see there for the ways to read it. Nothing runs before it is read.
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
        """
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
        """Keeps the first `length` tokens only. Chat messages that wait are dropped."""
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

    def release(self) -> None:
        """Gives the pages back. The context can't be used any more; a second call does nothing."""
        if self._released:
            return
        self._released = True
        retract(self)
        if self._in_flight and self._model._shared_pages:
            self._settle()
        self._offer_prefix()
        pages = drop(self._model._shared_pages, self._pages + self._pins)
        if pages:
            raw.dealloc_kvpage(self._queue, spans(pages))
        for embed in filter(None, (self._embed, self._spare)):
            raw.dealloc_emb(self._queue, embed)
        for sampler in list(self._samplers):
            self._close_sampler(sampler)
        raw.destroy_queue(self._queue)
        self._pages = []

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    # Commands

    def _is_quick(self) -> bool:
        """Whether the pending tokens, if any, go into one small command without waiting."""
        return len(self._pending) <= 1 and (self._hidden or bool(self._pending))

    def _next_dist(self, k: int) -> int:
        """Runs at most one pending token and asks for the distribution after it."""
        return raw.get_next_dist(self._queue, self._run_pending(), k)

    async def _submit_and_ask(self, k: int) -> int:
        return raw.get_next_dist(self._queue, await self._submit_pending(), k)

    def _run_pending(self) -> int:
        """Runs at most one pending token; the embed of the hidden state after it."""
        if self._pending:
            tokens = self._pending
            self._pending = []
            self._forward(tokens, True)
        return self._embed[0]

    async def _submit_pending(self) -> int:
        """Runs all pending tokens; the embed of the hidden state after them."""
        await self._submit()
        if not self._hidden:
            raise ValueError("nothing to continue from: fill something into the context first")
        return self._embed[0]

    async def _submit(self) -> None:
        """Queues the pending tokens, in chunks that the model and the embed pool can take."""
        if self._prefix_cache and not self._pages and self._pending:
            await self._find_prefix()
        most = self._model.max_batch_tokens
        while self._pending:
            chunk = self._pending[:most]
            last = len(chunk) == len(self._pending)
            try:
                self._forward(chunk, last)
            except PieError as error:
                # Embeds are few, and others use them too: smaller chunks need fewer at once.
                if (
                    error.code != "out-of-resources"
                    or len(chunk) < 2
                    or len(self._pages) < (-(-(self._length + len(chunk)) // self.page_size))
                ):
                    raise
                most = len(chunk) // 2
                continue
            self._pending = self._pending[len(chunk) :]
            self._offer_prefix()
            if not last:
                await done(raw.synchronize(self._queue))

    async def _find_prefix(self) -> None:
        """Begins the empty context with pages that hold the first of the pending tokens."""
        if self._released:
            raise ValueError("the context is released")
        adapter = self._adapter or ""
        # The last token has to run in any case: that gives its hidden state.
        while (found := raw.match_prefix(self._queue, adapter, self._pending[:-1]))[1]:
            await done(found[1])
        self._pages = addresses(found[0])
        self._cached = len(self._pages)
        self._length = self._cached * self._model.page_size
        self._tokens = self._pending[: self._length]
        self._pending = self._pending[self._length :]

    def _offer_prefix(self) -> None:
        """Lets others find the pages that are full, if there are more than there were."""
        full = self._length // self._model.page_size
        if self._prefix_cache and full > self._cached:
            raw.insert_prefix(self._queue, spans(self._pages[:full]))
            self._cached = full

    def _run_embeds(self, embeds: list[int], output: bool) -> None:
        """Queues embeds that have been written, a span of them, in the place of tokens."""
        self._forward([UNKNOWN] * embeds[1], output, embeds)

    def _forward(self, tokens: list[int], output: bool, given: list[int] | None = None) -> None:
        """Queues tokens: embed them, run them, keep their keys and values.

        Args:
            tokens: what follows the tokens in the pages.
            output: whether the last one's hidden state is wanted.
            given: span of embeds that hold them already.
        """
        if self._released:
            raise ValueError("the context is released")
        if self._ahead is not None:
            retract(self)
        queue = self._queue
        size = self._model.page_size
        start = self._length
        count = len(tokens)
        end = start + count
        first = start // size
        filled = -(-start // size)
        need = -(-end // size)
        if self._borrowed:
            self._own_last_page()
        if need > len(self._pages):
            self._grow(need)
        if not self._embed:
            self._embed = [raw.alloc_emb(queue, 1), 1]
        embeds = given or (self._embed if count == 1 else [raw.alloc_emb(queue, count), count])
        self._in_flight = True
        self._hidden = False
        # The hot path: without the checks and the calls of `raw`.
        try:
            if given is None:
                _bindings.input_text.embed_txt(queue, tokens, [start, count], embeds)
            outputs = self._embed if output else []
            targets = spans(self._pages[first:need])
            self._run_forward(self._inputs(filled), embeds, targets, outputs)
        except _bindings.Err as error:
            raise PieError(error.value) from None
        if count > 1 and given is None:
            raw.dealloc_emb(queue, embeds)
        self._length = end
        self._tokens += tokens
        self._hidden = output

    def _inputs(self, filled: int) -> list[int]:
        """Spans of the first pages."""
        known, found = self._input_spans
        if known != filled:
            if filled < known:
                known, found = 0, []
            extend(found, self._pages[known:filled])
            self._input_spans = (filled, found)
        return found

    def _run_forward(
        self, inputs: list[int], embeds: list[int], targets: list[int], outputs: list[int]
    ) -> None:
        """Queues a forward. Raises the bindings' own error."""
        if self._adapter is None:
            _bindings.forward.forward(self._queue, inputs, embeds, targets, outputs, [])
        else:
            _bindings.adapter.forward_with_adapter(
                self._queue, self._adapter, inputs, embeds, targets, outputs, []
            )

    def _grow(self, need: int) -> None:
        """Allocates pages up to `need`, and some of those that the generation will want anyway."""
        have = len(self._pages)
        wanted = -(-self._limit // self._model.page_size)
        count = max(need, min(wanted, need + have // 8)) - have
        start = raw.alloc_kvpage(self._queue, count)
        self._pages += range(start, start + count)

    def _own_last_page(self) -> None:
        """Replaces a borrowed last page by a copy of its part that belongs to this context."""
        used = self._length % self._model.page_size
        if used:
            old = self._pages[-1]
            new = raw.alloc_kvpage(self._queue, 1)
            raw.copy_kvpage(self._queue, old, 0, new, 0, used)
            self._in_flight = True
            self._pages[-1] = new
            self._pins.append(old)
            self._input_spans = (0, [])
        self._borrowed = False

    def _set_length(self, length: int) -> None:
        """Forgets the tokens from `length` on. Slots can't be emptied: a cut page gets copied."""
        keep = -(-length // self._model.page_size)
        free = drop(self._model._shared_pages, self._pages[keep:])
        if free:
            raw.dealloc_kvpage(self._queue, spans(free))
        del self._pages[keep:]
        del self._tokens[length:]
        self._cached = min(self._cached, length // self._model.page_size)
        self._length = length
        self._borrowed = True
        self._hidden = False
        self._input_spans = (0, [])

    def _rerun_last_token(self) -> None:
        """Takes the last token back into the buffer, so that the next run gives its hidden state."""
        if not self._pending and self._length and self._tokens[-1] != UNKNOWN:
            last = self._tokens[-1]
            self._set_length(self._length - 1)
            self._pending = [last]

    def _completed(self) -> None:
        """Notes that all commands so far have taken effect."""
        self._in_flight = False
        if self._pins:
            pins, self._pins = self._pins, []
            free = drop(self._model._shared_pages, pins)
            if free:
                raw.dealloc_kvpage(self._queue, spans(free))

    def _settle(self) -> None:
        """Waits, with every task of the inferlet, until all commands so far have taken effect.

        Needed only after an operation that was cancelled halfway, or that still runs.
        """
        retract(self)
        if self._in_flight:
            future = raw.synchronize(self._queue)
            raw.wait([future])
            raw.take(future)
            self._completed()
            self._unseen = False

    # For the generator

    def _expect(self, tokens: int) -> None:
        """Notes how far a generation may go."""
        self._limit = self._length + len(self._pending) + tokens

    def _open_sampler(self, parameters: str) -> int:
        """Makes a sampler on the server, which ends with the context at the latest."""
        sampler = raw.create_sampler(self._queue, parameters)
        self._samplers.add(sampler)
        return sampler

    def _close_sampler(self, sampler: int) -> None:
        if sampler in self._samplers:
            self._samplers.remove(sampler)
            raw.destroy_sampler(self._queue, sampler)

    def _known_tokens(self) -> list[int]:
        """All tokens of the context that are known."""
        return [token for token in self._tokens + self._pending if token != UNKNOWN]

    def _before(self) -> list[int]:
        """The known tokens before the next one."""
        tail = (self._tokens + self._pending)[-8:] if len(self._pending) < 8 else self._pending[-8:]
        return [token for token in tail if token != UNKNOWN]

    def _start_turn(self) -> None:
        """Renders what waits; after a message, the assistant's turn starts."""
        if self._chat.unanswered:
            self.cue()

    def _facts(self) -> dict[str, Any]:
        """Numbers for tests and debugging."""
        return {
            "pages": list(self._pages),
            "pins": list(self._pins),
            "borrowed": self._borrowed,
            "hidden": self._hidden,
            "ahead": self._ahead is not None,
        }
