"""A sequence: tokens whose keys and values lie in the server's KV pages, and the commands that put them in.

What programs use is a `Context`, which adds texts, generation, forks and names.
"""

from __future__ import annotations

from typing import Any, Self

from inferlet import _bindings, raw
from inferlet._ahead import Ahead, retract
from inferlet._loop import done
from inferlet._pages import addresses, drop, extend, spans
from inferlet.errors import PieError
from inferlet.model import Model

UNKNOWN = -1  # a token of an opened context: its pages are known, its tokens are not


class Sequence:
    """What a context is below its texts: pages, tokens in them, tokens that wait, a queue of commands."""

    __slots__ = (
        "__weakref__",
        "_adapter",
        "_ahead",
        "_borrowed",
        "_cached",
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

    def __init__(self, model: Model, adapter: str | None, prefix_cache: bool) -> None:
        """Makes an empty one. Arguments are those of `Context`."""
        self._released = True  # until there is something to release
        self._model = model
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
        self._borrowed = False  # what follows the full pages is shared or immutable: copy it first
        self._pins: list[int] = []  # pages held until the copies from them are done
        self._hidden = False  # the embed holds the last token's hidden state
        self._in_flight = False  # commands are queued that nobody has seen the end of
        self._input_spans: tuple[int, list[int]] = (0, [])  # page count, spans of these
        self._samplers: set[int] = set()  # of generations under way
        self._ahead: Ahead | None = None  # a step at the server that nothing else here knows of
        self._unseen = False  # a step that was undone may still run, and write
        self._spare: list[int] = []  # span of the embed that such steps use in turn with the other
        self._limit = 0  # tokens that the generation under way may reach

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self._model.page_size

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

    def __enter__(self) -> Self:
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
            self._forward(self._pending, True)
            self._pending = []  # only now: if that fails, the token still waits
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
        finally:
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
        """Replaces a borrowed last page by a copy of its part that belongs to this context.

        Pages after it are empty ones that were allocated ahead: whoever they are shared with may write
        to them, so they are given up.
        """
        full, used = divmod(self._length, self._model.page_size)
        old = self._pages[full:]
        if used:
            new = raw.alloc_kvpage(self._queue, 1)
            try:
                raw.copy_kvpage(self._queue, old[0], 0, new, 0, used)
            except PieError:
                raw.dealloc_kvpage(self._queue, [new, 1])
                raise
            self._in_flight = True
            self._pages[full:] = [new]
        else:
            del self._pages[full:]
        self._pins += old
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

    # For generators

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
        """The known tokens before the next one, as many as a decoder of text looks at."""
        tail = (self._tokens[-9:] + self._pending)[-9:]
        return [token for token in tail if token != UNKNOWN]

    def _facts(self) -> dict[str, Any]:
        """Numbers for tests and debugging."""
        return {
            "pages": list(self._pages),
            "pins": list(self._pins),
            "borrowed": self._borrowed,
            "hidden": self._hidden,
            "ahead": self._ahead is not None,
        }
