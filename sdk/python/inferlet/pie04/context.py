"""The context of Pie 0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Self

import inferlet
from inferlet import chat, images, runtime
from inferlet.model import Model
from inferlet.pie04.forward import Adapter, Forward
from inferlet.pie04.generation import Generator, Speculator
from inferlet.pie04.grammar import Constraint, Schema
from inferlet.sample import Sampler

_snapshots = count(1)


@dataclass(frozen=True, slots=True)
class Image:
    """An image file for a model."""

    model: Model
    data: bytes

    @classmethod
    def from_bytes(cls, model: Model, data: bytes | bytearray | memoryview) -> Self:
        """An image file."""
        return cls(model, bytes(data))

    def token_count(self) -> int:
        """How many tokens' places it takes. Raises PieError as `images.tokens_of`."""
        return images.tokens_of(self.model, self.data)


class Context(inferlet.Context):
    """A text in KV pages; what is not said here is as in `inferlet.Context`."""

    __slots__ = ()

    def __init__(self, model: Model) -> None:
        super().__init__(model)

    def truncate(self, n: int) -> Self:
        """Takes the last `n` tokens back that have run; what is buffered stays.

        Raises:
            ValueError: there are not as many.
        """
        waiting = self.buffer()
        if not 0 <= n <= self.seq_len:
            raise ValueError(f"there are {self.seq_len} tokens, not {n}, to take back")
        super().truncate(self.seq_len - n)
        self.sequence.pending = waiting
        return self

    def snapshot(self) -> str:
        """Saves it under a name of its own. Raises as `save`."""
        name = f"snapshot-{runtime.instance_id()}-{next(_snapshots)}"
        self.save(name)
        return name

    async def append_image(self, image: Image) -> None:
        """Runs what is buffered, and the image after it. Raises as `inferlet.Context.image`."""
        await self.image(image.data)

    async def append_images(self, images: Iterable[Image]) -> None:
        """Several, one after the other."""
        for image in images:
            await self.append_image(image)

    def forward(self) -> Forward:  # type: ignore[override]
        """Begins a forward; nothing runs before its `execute`."""
        self.buffer()  # messages become tokens now, and wait
        return Forward(self)

    def generate(  # type: ignore[override]
        self,
        sampler: Sampler,
        *,
        max_tokens: int | None = None,
        stop: Iterable[int] | None = None,
        constrain: Schema | Constraint | list[Schema | Constraint] | None = None,
        logit_mask: Sequence[int] | None = None,
        speculator: Speculator | None = None,
        system_speculation: bool | None = None,
        adapter: Adapter | None = None,
        horizon: int | None = None,
        rebid_each_step: bool = True,
        auto_flush: bool = True,
    ) -> Generator:
        """Continues the context.

        Args:
            sampler: how to choose tokens.
            max_tokens: the most to generate; by default up to the model's longest context.
            stop: tokens that end it; by default the model's own, and none without `auto_flush`.
            constrain: what the text has to look like.
            logit_mask: the tokens that may come.
            speculator: drafts tokens.
            system_speculation: no effect, as those of `Generator` that have none.
            adapter: to go through.
            horizon: no effect.
            rebid_each_step: no effect.
            auto_flush: whether the assistant's turn is started, unless it has begun.

        Raises:
            ValueError: two ways to speculate.
            PieError: `invalid-argument` for a wrong grammar.
        """
        if system_speculation and speculator is not None:
            raise ValueError("speculate by a speculator of your own or by the system, not by both")
        if auto_flush:
            self._start_answer()
        stops = self.model.stop_tokens if stop is None and auto_flush else stop or ()
        several = constrain if isinstance(constrain, list) else [constrain]
        return Generator(
            self,
            sampler,
            max_tokens=self.model.max_position - len(self) if max_tokens is None else max_tokens,
            stop=stops,
            constraints=[one for one in several if one is not None],
            logit_mask=logit_mask,
            speculator=speculator,
            adapter=adapter,
        )

    def _start_answer(self) -> None:
        if self._chat.unanswered:
            self.cue()
        elif self.model.has_chat_template and not self._chat.answering:
            self.append(chat.cue(self.model))

    def set_bid(self, value: float) -> None:
        """Has no effect: there are no bids."""

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Has no effect: what waits gives its pages up by itself where others need them."""
        yield
