"""Instances that serve a request: launched, read, and ended with the request."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio
import msgspec

from pie_gateway.backend import job as jobs
from pie_gateway.problems import Problem, of_client
from pie_py.client import ClientError, InferletFailed, Instance, RpcError
from pie_py.client.errors import RequestTooLarge
from pie_py.wire.rpc import MADE_WAY, MAX_ARGUMENT_BYTES

EVENTS_AHEAD = 16  # of the reader of several generations
TRIES = 3  # of a generation, each at another node of a cluster
LOST = "node_lost"  # the code of a problem


class Observer:
    """Sees one generation run, for limits, metrics and logs; by default it does nothing."""

    def launched(self, instance: str) -> None:
        """Its instance runs."""

    def prompt(self, event: jobs.Prompt) -> None:
        """The prompt has been read."""

    def piece(self, event: jobs.Piece) -> None:
        """A choice goes on."""

    def end(self, event: jobs.End) -> None:
        """A choice has ended."""

    def over(self, instance: str) -> None:
        """Its instance has ended."""


class Seat:
    """The place of a request in an instance of several (`together.py`), read as one of its own."""

    def __init__(self, instance: str) -> None:
        self.id = instance
        self._messages: deque[bytes] = deque()
        self._error: ClientError | None = None
        self._answered = anyio.Event()

    def answer(self, messages: Sequence[msgspec.Raw], error: ClientError | None) -> None:
        """It has ended, after these messages, and with an error or none."""
        self._messages.extend(map(bytes, messages))
        self._error = error
        self._answered.set()

    async def receive(self) -> bytes | None:
        """As `Instance.receive`."""
        await self._answered.wait()
        return self._messages.popleft() if self._messages else None

    async def result(self) -> str:
        """As `Instance.result`."""
        if self._error is not None:
            raise self._error
        return ""


class _Told:
    """The told events of a request: an instance in another's place tells the same again."""

    def __init__(self) -> None:
        self._most: Counter[object] = Counter()  # events, and tokens and characters by choice
        self._now: Counter[object] = Counter()  # likewise, by the present instance

    def begin_again(self) -> None:
        self._now.clear()

    def new(self, event: jobs.Event) -> jobs.Event | None:
        """The part of an event that is new; None if nothing is."""
        if not isinstance(event, jobs.Piece):
            key = (type(event), 0 if isinstance(event, jobs.Prompt) else event.choice)
            return event if self._count(key, 1) == 0 else None
        known = self._count(("text", event.choice), len(event.text))
        tokens = self._count(("tokens", event.choice), event.tokens)
        if tokens == event.tokens and known == len(event.text):
            return None if tokens or known else event
        text, left = event.text[known:], event.tokens - tokens
        return jobs.Piece(event.choice, text, left, event.ids[tokens:], event.logprobs[tokens:])

    def _count(self, key: object, count: int) -> int:
        """How many of so many more were told before."""
        begin = self._now[key]
        self._now[key] = end = begin + count
        before = min(max(self._most[key] - begin, 0), count)
        self._most[key] = max(self._most[key], end)
        return before


class Generation:
    """An instance of the program that serves a request. It ends with `async with`, at the latest.

    It is read no faster than its events are taken: the server then holds the instance up. One that
    does not stream is read to its end before, so that nothing of it was sent if a cluster's node is
    lost: then it is made once more at another node. One that had to make way for others' memory is
    computed again from its seed, and goes on where it was.
    """

    def __init__(
        self,
        launch: Callable[[str], Awaitable[Instance | Seat]],
        job: jobs.Job | jobs.EmbeddingJob,
        images: Sequence[bytes],
        field: str = "messages",
        *,
        is_pure: bool = True,
    ) -> None:
        """Takes what launches the program with an argument, what the instance is given, the
        request's field that has the prompt, and whether nothing but its answer is left of it.
        """
        self._launch, self._field = launch, field
        self._is_whole = is_pure and not (isinstance(job, jobs.Job) and job.stream)
        self._is_pure, self._told = is_pure, _Told()
        if is_pure and isinstance(job, jobs.Job) and job.sampler.get("seed") is None:
            job = msgspec.structs.replace(
                job, sampler={**job.sampler, "seed": random.getrandbits(53)}
            )
        self._argument = ""
        self._ahead: deque[jobs.Piece | jobs.End] = deque()  # read and not taken yet
        self._job = job
        self._images = images
        self._instance: Instance | Seat | None = None
        self._tokens = 0  # of the prompt
        self.observers: list[Observer] = []
        self.by_size = _at_once  # does what takes longer the more was asked

    @property
    def id(self) -> str:
        """Of the instance."""
        return "" if self._instance is None else self._instance.id

    async def __aenter__(self) -> Generation:
        """Launches the instance. Raises `Problem`: the server refuses."""
        try:
            self._argument = await self.by_size(_argument, self._job)
            await self._begin()
        except ClientError as error:
            await self._end()
            raise of_client(error) from None
        except BaseException:  # the client leaves while its images are taken
            await self._end()
            raise
        return self

    async def _begin(self) -> None:
        self._instance = await self._launch(self._argument)
        for observer in self.observers:
            observer.launched(self._instance.id)
        for image in self._images:
            assert isinstance(self._instance, Instance)  # a request with images has its own
            try:
                await self._instance.send(image)
            except RpcError as error:
                if error.code in ("cancelled", "node-lost"):
                    return  # it has ended, and its result says why
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def prompt(self, *, alone: bool = False) -> jobs.Prompt:
        """The first event, or that `alone`. Raises `Problem`: the instance has failed before."""
        for left in reversed(range(TRIES)):
            try:
                event = await self._next()
                if not isinstance(event, jobs.Prompt):
                    raise _misspoken(f"it begins with {type(event).__name__}")
                self._tokens = event.tokens
                for observer in self.observers:
                    observer.prompt(event)
                if self._is_whole and not alone:
                    self._ahead.extend([each async for each in self._rest()])
                return event
            except Problem as problem:
                if problem.code != LOST or not left:
                    raise
            await self._end()
            self._told = _Told()
            try:
                await self._begin()
            except ClientError as error:
                raise of_client(error) from None
        raise AssertionError("the last try returns or raises")

    async def events(self) -> AsyncIterator[jobs.Piece | jobs.End]:
        """The events that follow. Raises `Problem`: the instance fails."""
        while self._ahead:
            yield self._ahead.popleft()
        if not self._is_whole:
            async for event in self._rest():
                yield event

    async def _rest(self) -> AsyncIterator[jobs.Piece | jobs.End]:
        while (event := await self._next()) is not None:
            if isinstance(event, jobs.Prompt):
                raise _misspoken("it tells of its prompt twice")
            if isinstance(event, jobs.End):
                # A grammar's forced tokens go with the prompt, and may be found as well.
                event.cached = min(event.cached, self._tokens)
            for observer in self.observers:
                if isinstance(event, jobs.Piece):
                    observer.piece(event)
                else:
                    observer.end(event)
            yield event

    async def _next(self) -> jobs.Event | None:
        while True:
            try:
                message = await self._receive()
            except ClientError as error:
                form = self._job.grammar if isinstance(self._job, jobs.Job) else None
                field = None if form is None else form.field
                raise of_client(error, self._field, field) from None
            if message is None:
                return None
            try:
                event = self._told.new(jobs.decode_event(message))
            except msgspec.DecodeError as error:
                raise _misspoken(str(error)) from None
            if event is not None:
                return event

    async def _receive(self) -> str | bytes | None:
        """A message; None behind the last one."""
        while True:
            assert self._instance is not None
            try:
                message = await self._instance.receive()
                if message is None:
                    await self._instance.result()  # raises if it has failed
                return message
            except InferletFailed as error:
                if not self._is_pure or MADE_WAY not in error.text:
                    raise
            await self._end()
            self._told.begin_again()
            await self._begin()

    async def _end(self) -> None:
        """Ends the instance if it lives, also when the request is cancelled."""
        if self._instance is None:
            return
        if isinstance(self._instance, Instance):
            await end(self._instance)
        for observer in self.observers:
            observer.over(self._instance.id)


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def _argument(job: jobs.Job | jobs.EmbeddingJob) -> str:
    """Raises `RequestTooLarge`, before it is packed for nothing."""
    encoded = msgspec.json.encode(job)
    if len(encoded) > 4 * MAX_ARGUMENT_BYTES:  # as many characters, at least
        text = f"the conversation has {len(encoded)} bytes; {MAX_ARGUMENT_BYTES} are taken"
        raise RequestTooLarge(text)
    return encoded.decode()


async def end(instance: Instance, *, leave: bool = False) -> None:
    """Ends an instance if it lives, or leaves it, also when its request is cancelled."""
    if not instance.ended:
        with anyio.move_on_after(5.0, shield=True), suppress(ClientError):
            await (instance.detach() if leave else instance.cancel())


def _misspoken(why: str) -> Problem:
    return Problem(500, f"the program of this route does not speak as agreed: {why}")


async def merged(
    generations: Sequence[Generation], choices: int
) -> AsyncGenerator[tuple[int, jobs.Event], None]:
    """Launches generations and yields their events, each with the number of its generation.

    The choices of generation `i` are counted from `i * choices`. Instances end with the generator.
    Raises `Problem`: one of them fails.
    """
    if len(generations) == 1:
        async with generations[0] as generation:
            yield 0, await generation.prompt()
            async for event in generation.events():
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, jobs.Event | Exception | None]] = asyncio.Queue(EVENTS_AHEAD)

    async def read(number: int, generation: Generation) -> None:
        try:
            async with generation:
                await queue.put((number, await generation.prompt()))
                async for event in generation.events():
                    await queue.put((number, event))
            await queue.put((number, None))
        except Exception as error:  # noqa: BLE001  raised by the reader
            await queue.put((number, error))

    tasks = [asyncio.create_task(read(at, each)) for at, each in enumerate(generations)]
    running = len(tasks)
    try:
        while running:
            number, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
                continue
            if isinstance(item, jobs.Piece | jobs.End):
                item.choice += number * choices
            yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
