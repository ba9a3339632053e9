"""A sequence: tokens whose keys and values lie in the server's KV pages, and the commands for that.

Programs use a `Context`, which adds texts, messages and generations. Its `sequence` is for modules
of this SDK, and for programs that combine contexts with functions of `raw`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from inferlet import raw
from inferlet._generated import bindings
from inferlet._loop import ready
from inferlet._pages import Pages, addresses, spans
from inferlet.errors import PieError
from inferlet.model import Model
from inferlet.sample import Distribution

T = TypeVar("T")

UNKNOWN = -1  # a token whose keys and values are in the pages, but whose number is not known here


class Tentative(Protocol):
    """Work of the server for a sequence that may turn out not to take it: a run."""

    def retract(self) -> None:
        """Undoes what the sequence does not show."""


class Sequence:
    """Tokens in pages, tokens that wait for their run, and the queue of commands.

    Attributes:
        model: the model.
        adapter: the LoRA adapter that everything goes through, if any.
        queue: handle of the command queue.
        pages: the KV pages.
        tokens: the tokens whose keys and values are in the pages, or will be when the commands that
            are queued have run.
        pending: tokens that follow these and are not queued yet.
        embed: span of the embed for the newest token's hidden state; empty before the first run.
        spare: span of a second embed, for runs; empty before the first.
        has_hidden: whether `embed` holds the hidden state after the last of `tokens`.
        confirmed: how many of the first tokens have run for certain. If commands fail, the others
            are pending again.
        found: how many of the first tokens the prefix cache had.
        offered: how many of the first pages the prefix cache has been offered.
        prefix_cache: whether what is computed here is plain text, for other inferlets to find.
        shift: how far the next token's position lies behind its place among `tokens`.
        hidden: places of the tokens that no other token attends to any more.
        images: images that take fewer positions than tokens: the place of the first token of each,
            that behind the last one, and the positions.
        tentative: a run that goes on beyond all this; it is ended before anything else is queued.
        generation: number of the generation that began last.
        choosing: whether that generation waits for a token.
    """

    def __init__(self, model: Model, adapter: str | None, prefix_cache: bool) -> None:
        """Makes an empty one. Arguments are those of `Context`."""
        self._released = True  # if making the queue fails, `__del__` has nothing to give back
        self.model = model
        self.adapter = adapter
        self.queue = raw.create_queue(model.name)
        self._released = False
        self.pages = Pages(model, self.queue)
        self.tokens: list[int] = []
        self.pending: list[int] = []
        self.embed: list[int] = []
        self.spare: list[int] = []
        self.has_hidden = False
        self.confirmed = 0
        self.tentative: Tentative | None = None
        self.generation = 0
        self.choosing = False
        self.prefix_cache = prefix_cache
        self.found = self.offered = 0
        self.shift = 0
        self.hidden: set[int] = set()
        self.images: list[tuple[int, int, int]] = []
        self._samplers: set[int] = set()  # of generations under way

    def __len__(self) -> int:
        return len(self.tokens) + len(self.pending)

    # Running tokens

    async def output_embed(self, told: int = 0, reader: int | None = None) -> int:
        """Runs what is pending; the embed of the hidden state after it.

        Args:
            told: how many of the last tokens have to be among that, for a program is told what they
                attend to.
            reader: the sampler that chose the only token that is pending: its program of layers
                chooses what that one reads.

        Raises:
            ValueError: there is nothing to continue from, the context is released, or those tokens
                can't run again.
            PieError: `out-of-resources` and others of the server.
        """
        self.retract()
        if told > len(self.pending):
            self._run_again(max(0, len(self) - told))
        if not self.pending and not self.has_hidden:
            self.rerun_last(len(self.tokens))
        if len(self.pending) == 1:
            self.forward(self.pending, output=True, reader=reader)
            self.pending = []  # only now: if that fails, the token still waits
        else:
            await self.submit(told)
        if not self.has_hidden:
            raise ValueError("nothing to continue from: fill something into the context first")
        return self.embed[0]

    async def next_distribution(self, k: int) -> Distribution:
        """Runs what is pending; the `k` most likely tokens after it. Raises as `output_embed`."""
        future = raw.get_next_dist(self.queue, await self.output_embed(), k)
        return Distribution(*await self.outcome(future, raw.take_dist))

    async def submit(self, told: int = 0) -> None:
        """Queues what is pending, in chunks that the model and the embed pool can take. As many of
        the last tokens as `told` are not looked for in the prefix cache. Raises PieError:
        `out-of-resources` and others; what was not queued is still pending.
        """
        if self.prefix_cache and not (self.shift or self.pages.addresses) and self.pending:
            # The last token has to run in any case: that gives its hidden state.
            await self._find_prefix(max(0, len(self.pending) - max(told, 1)))
        most = self.model.max_batch_tokens
        while self.pending:
            chunk = self.pending[:most]
            last = len(chunk) == len(self.pending)
            try:
                self.forward(chunk, output=last)
            except PieError as error:
                # Embeds are few, and other inferlets use them too: a smaller chunk needs fewer at
                # once. If it was pages that ran out, a smaller chunk does not help.
                room = len(self.pages.addresses) * self.pages.size
                short_of_pages = room < len(self.tokens) + len(chunk)
                if error.code != "out-of-resources" or len(chunk) < 2 or short_of_pages:
                    raise
                most = len(chunk) // 2
                continue
            self.pending = self.pending[len(chunk) :]
            self._offer_prefix()
            if not last:
                # The next chunk needs the embeds of this one, which are free once it has run.
                await self.synchronize()

    async def flush(self) -> None:
        """Runs what is pending, and waits until it is in the pages. Raises as `submit`."""
        self.retract()
        await self.submit()
        await self.synchronize()

    def forward(
        self,
        tokens: list[int],
        output: bool,
        given: list[int] | None = None,
        mask: list[int] | None = None,
        others: list[int] | None = None,
        reader: int | None = None,
    ) -> None:
        """Queues tokens: embed them, run them, keep their keys and values.

        Args:
            tokens: what follows the tokens in the pages.
            output: whether the last one's hidden state is wanted.
            given: span of embeds that hold them already.
            mask: what they attend to, as the server wants it.
            others: spans of embeds for the hidden states after tokens before the last.
            reader: the sampler whose program of layers chooses what the only token reads, of which
                the hidden state is wanted and nothing else.

        Raises:
            ValueError: the context is released.
            PieError: of the server; then none of the tokens is queued.
        """
        if self._released:
            raise ValueError("the context is released")
        if self.tentative is not None:
            self.tentative.retract()
        queue, pages = self.queue, self.pages
        start = len(self.tokens)
        count = len(tokens)
        first = start // pages.size
        need = -(-(start + count) // pages.size)
        if first < pages.read_only:
            pages.copy_on_write(start)
        if need > len(pages.addresses):
            pages.grow(need)
        if not self.embed:
            self.embed = [raw.alloc_emb(queue, 1), 1]
        embeds = given or (self.embed if count == 1 else [raw.alloc_emb(queue, count), count])
        self.has_hidden = False
        # Once a token where the program chooses: the bindings without the checks of `raw`.
        try:
            if given is None:
                bindings.input_text.embed_txt(queue, tokens, [start + self.shift, count], embeds)
            inputs = pages.inputs(-(-start // pages.size))
            targets = spans(pages.addresses[first:need])
            outputs = [*(others or ()), *self.embed] if output else []
            if reader is not None:
                page = pages.addresses[first]
                bindings.sample.attend(queue, reader, embeds[0], inputs, page, self.adapter or "")
            elif self.adapter is None:
                bindings.forward.forward(queue, inputs, embeds, targets, outputs, mask or [])
            else:
                bindings.adapter.forward_with_adapter(
                    queue, self.adapter, inputs, embeds, targets, outputs, mask or []
                )
        except bindings.Err as error:
            raise PieError(error.value) from None
        finally:
            if count > 1 and given is None:
                raw.dealloc_emb(queue, embeds)
        self.tokens += tokens
        self.has_hidden = output

    def ran(self, count: int) -> None:
        """All tokens have run, and so have the first pending ones: they are in the pages."""
        if count:
            self.tokens += self.pending[:count]
            del self.pending[:count]
            self.has_hidden = False
        self.confirmed = len(self.tokens)

    # What has taken effect

    async def outcome(self, future: int, take: Callable[[int], T]) -> T:
        """The value of a future behind all commands so far, taken by `take`. Raises PieError: of
        the server; what has failed to run is pending again.
        """
        length = len(self.tokens)
        try:
            await ready(future)
            found = take(future)
        except PieError as error:
            self.recover(error)
            raise
        self.confirmed = max(self.confirmed, min(length, len(self.tokens)))
        return found

    async def synchronize(self) -> None:
        """Waits until all commands so far have taken effect. Raises as `outcome`."""
        await self.outcome(raw.synchronize(self.queue), raw.take)

    def recover(self, error: PieError) -> None:
        """After an error of a future: if commands before it have failed, their tokens wait again.

        An image whose commands have failed is gone.
        """
        if error.code not in ("internal", "failed-dependency"):
            return  # of the future alone
        self.retract()
        lost = self.tokens[self.confirmed :]
        if lost:
            self.set_length(self.confirmed)
            self.pending[:0] = [token for token in lost if token != UNKNOWN]
        with suppress(PieError):
            self.settle()  # until then the queue takes no commands

    def settle(self) -> None:
        """Ends a run, and waits until all commands so far have taken effect, with every task of the
        inferlet. Raises as `outcome`.
        """
        self.retract()
        future = raw.synchronize(self.queue)
        raw.wait([future])
        try:
            raw.take(future)
        except PieError as error:
            self.recover(error)
            raise
        self.confirmed = len(self.tokens)

    def confirm(self) -> None:
        """Ends a run, and waits for what may still fail.

        There is something to wait for only after an operation that was cancelled halfway, or that
        still runs. Raises as `outcome`.
        """
        self.retract()
        if self.confirmed < len(self.tokens):
            self.settle()

    def retract(self) -> None:
        """Ends the run, if there is one: what the sequence does not show is undone."""
        if self.tentative is not None:
            self.tentative.retract()

    # The prefix cache

    async def _find_prefix(self, count: int) -> None:
        """Begins the empty sequence with shared pages that hold some of the first `count` pending
        tokens.
        """
        if self._released:
            raise ValueError("the context is released")
        adapter = self.adapter or ""
        while (found := raw.match_prefix(self.queue, adapter, self.pending[:count]))[1]:
            # Another inferlet computes more of it at this moment.
            await ready(found[1])
            raw.take(found[1])
        pages = self.pages
        pages.addresses = addresses(found[0])
        pages.read_only = self.offered = len(pages.addresses)
        length = self.confirmed = self.found = self.offered * pages.size
        self.tokens = self.pending[:length]
        self.pending = self.pending[length:]

    def _offer_prefix(self) -> None:
        """Lets other inferlets find the pages that are full, if there are more than there were."""
        pages = self.pages
        full = len(self.tokens) // pages.size
        if self.prefix_cache and full > self.offered:
            raw.insert_prefix(self.queue, spans(pages.addresses[:full]))
            self.offered = full
            pages.freeze(full)

    # Branching and keeping

    def fork(self) -> Sequence:
        """A second sequence with the same content, that shares the pages. Raises ValueError: the
        context is released.
        """
        if self._released:
            raise ValueError("the context is released")
        self.confirm()  # the fork would not know of a failure
        other = Sequence(self.model, self.adapter, self.prefix_cache)
        self.pages.share_with(other.pages)
        other.tokens = self.tokens[:]
        other.confirmed = self.confirmed
        other.pending = self.pending[:]
        other.offered = self.offered
        other.shift = self.shift
        other.hidden = self.hidden.copy()
        other.images = self.images[:]
        return other

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens, at most as many as there are."""
        held = len(self.tokens)
        if length >= held:
            del self.pending[length - held :]
            return
        self.retract()
        self.set_length(length)
        self.pending = []

    def discard(self) -> None:
        """Gives the pages up: all tokens are pending again. Raises ValueError: some tokens are not
        known.
        """
        if UNKNOWN in self.tokens:
            raise ValueError("a context whose tokens are not known can't be computed again")
        self.retract()
        pending = self.tokens + self.pending
        self.set_length(0)
        self.pending = pending

    def retain(self, priority: int, seconds: float, part: slice) -> None:
        """Says what the pages of a part of the tokens are worth. Raises as `Context.retain`."""
        first, last, _ = part.indices(len(self.tokens))
        size = self.pages.size
        pages = self.pages.addresses[first // size : -(-last // size)]
        raw.retain_kvpage(self.queue, spans(pages), priority, max(0, int(seconds * 1e9)))

    def save(self, name: str, *, shared: bool, seconds: float | None) -> None:
        """Keeps the pages under a name. Nothing is pending. Raises as `Context.save`."""
        self.settle()  # a page that a queued command writes can't be saved
        used = -(-len(self.tokens) // self.pages.size)
        raw.export_kvpage(self.queue, spans(self.pages.addresses[:used]), name, shared)
        if seconds is not None:
            try:
                raw.expire_export(self.queue, name, max(0, int(seconds * 1e9)))
            except PieError:
                raw.release_export(self.queue, name)
                raise
        self.pages.freeze(used)

    def load(self, name: str) -> None:
        """Appends the pages saved under a name; their tokens are not known. Raises PieError:
        `not-found`, `out-of-resources`.
        """
        mapped = raw.import_kvpage(self.queue, name)
        used = raw.kvpage_used(self.queue, mapped)
        self.pages.append(addresses(mapped), used, len(self.tokens))
        self.tokens += [UNKNOWN] * sum(used)
        self.confirmed = len(self.tokens)

    def rerun_last(self, length: int) -> None:
        """Cuts off the last of `length` tokens, to run it again for its hidden state."""
        if length and self.tokens[length - 1] != UNKNOWN:
            self.pending = [self.tokens[length - 1]]
            self.set_length(length - 1)

    def _run_again(self, first: int) -> None:
        """Has the tokens in the pages from place `first` on run again. Raises ValueError: one is
        not known, is hidden, or may stand at another position.
        """
        again = self.tokens[first:]
        moved = self.shift or any(place >= first for place in self.hidden)
        if UNKNOWN in again or (len(again) > 1 and moved):
            raise ValueError(
                f"`attend` is told what the last tokens of the context attend to, {len(again)} of"
                " them have run before, and they can't run again: there is an image among them, or"
                " a part that was opened, hidden or given up; generate before that"
            )
        if again:
            self.set_length(first)
            self.pending[:0] = again

    def set_length(self, length: int) -> None:
        """Forgets the tokens in the pages from `length` on."""
        self.pages.truncate(length)
        del self.tokens[length:]
        self.confirmed = min(self.confirmed, length)
        self.offered = min(self.offered, length // self.pages.size)
        self.hidden = {place for place in self.hidden if place < length}
        self.has_hidden = False
        while self.images and self.images[-1][1] > length:
            first, end, positions = self.images.pop()
            self.shift -= positions - (end - first)
            self.note_image(first, length, positions)

    def note_image(self, first: int, end: int, positions: int) -> None:
        """Notes that the tokens from `first` up to `end` are an image of so many positions."""
        if first < end and positions != end - first:
            self.images.append((first, end, positions))
            self.shift += positions - (end - first)

    def position(self, place: int) -> int:
        """Position of the token at a place. Raises ValueError: it is within an image that takes
        fewer positions than tokens.
        """
        shift = self.shift
        for first, end, positions in self.images:
            if first < place < end:
                raise ValueError(f"token {place} is within an image, {first} to {end}")
            if place < end:
                shift -= positions - (end - first)
        return place + shift

    def release(self) -> None:
        """Gives everything back; a second call does nothing. It can't be used any more."""
        if self._released:
            return
        self._released = True
        self.retract()
        try:
            with suppress(PieError):  # what is swapped out cannot be offered
                self._offer_prefix()
        finally:
            self.pages.release()
            for embed in filter(None, (self.embed, self.spare)):
                raw.dealloc_emb(self.queue, embed)
            for sampler in list(self._samplers):
                self.close_sampler(sampler)
            raw.destroy_queue(self.queue)

    def __del__(self) -> None:
        self.release()

    # For generations

    def expect(self, tokens: int) -> None:
        """Notes how many tokens a generation may add: pages are then allocated several at once."""
        self.pages.expected = -(-(len(self) + tokens) // self.pages.size)

    def open_sampler(self, parameters: str) -> int:
        """Makes a sampler on the server, which ends with the sequence at the latest. Raises
        PieError: `invalid-argument`, `unsupported`, `limit-exceeded`, `out-of-resources`.
        """
        sampler = raw.create_sampler(self.queue, parameters)
        self._samplers.add(sampler)
        return sampler

    def close_sampler(self, sampler: int) -> None:
        """Ends a sampler. A second call does nothing."""
        if sampler in self._samplers:
            self._samplers.remove(sampler)
            raw.destroy_sampler(self.queue, sampler)

    def mask_of(self, token: int) -> array[int]:
        """The mask that allows a token alone. Raises ValueError: the model has none of this id."""
        if not 0 <= token < self.model.vocab_size:
            raise ValueError(f"{token} is no token: there are 0 to {self.model.vocab_size - 1}")
        mask = array("I", bytes(-(-self.model.vocab_size // 32) * 4))
        mask[token // 32] = 1 << token % 32
        return mask

    def known_tokens(self) -> list[int]:
        """All tokens that are known, pending ones included."""
        return [token for token in self.tokens + self.pending if token != UNKNOWN]

    def tail(self) -> list[int]:
        """The known tokens before the next one, as many as a decoder of text looks at."""
        tail = (self.tokens[-9:] + self.pending)[-9:]
        return [token for token in tail if token != UNKNOWN]

    def facts(self) -> dict[str, Any]:
        """State for tests and debugging."""
        return {
            "pages": list(self.pages.addresses),
            "read_only": self.pages.read_only,
            "hidden": self.has_hidden,
            "ahead": self.tentative is not None,
            "confirmed": self.confirmed,
        }
