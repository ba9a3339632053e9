"""One user's connection to the control process, and what is known of the server through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import anyio
from anyio import to_thread

from pie_gateway.backend.catalog import Catalog
from pie_gateway.backend.generation import Generation
from pie_gateway.backend.job import Job
from pie_gateway.backend.snapshot import Snapshots
from pie_gateway.backend.vocabulary import Vocabulary, read_vocabulary
from pie_gateway.problems import of_client
from pie_py.build.modules import read_program
from pie_py.client import Client, ClientError, Instance, RpcError
from pie_py.config.gateway import Route
from pie_py.config.shipped_files import shipped_folder

# The library's programs: what each is called when it is uploaded, and its file.
CHAT = ("gateway-chat", "chat/chat.wasm")
ASYNCHRONOUS = ("gateway-async", "async_function_calling/chat.py")


class Backend:
    """What a user's requests go through."""

    def __init__(
        self, client: Client, programs: dict[Route, str], clock: Callable[[], float]
    ) -> None:
        """Takes a connected client, and which programs serve routes instead of the library's."""
        self.client = client
        self.catalog = Catalog(client, clock)
        self.snapshots = Snapshots(client, clock)
        self.requests = 0  # under way
        self.used_at = clock()
        self._programs = programs
        self._clock = clock
        self._uploaded: dict[str, str] = {}  # hashes by name
        self._vocabularies: dict[str, Vocabulary] = {}
        self._uploading = anyio.Lock()
        self._reading = anyio.Lock()

    @contextmanager
    def used(self) -> Iterator[None]:
        """While a request goes through it, it is not closed."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1
            self.used_at = self._clock()

    @property
    def user(self) -> str:
        """Who the server takes its requests for."""
        return self.client.user

    def generation(self, route: Route, job: Job, images: Sequence[bytes] = ()) -> Generation:
        """An instance for a job, which `async with` launches."""
        return Generation(partial(self._launch, route), job, images)

    async def _launch(self, route: Route, argument: str) -> Instance:
        """Launches the program of a route.

        Raises:
            ClientError: the server refuses.
            Problem: the library's program cannot be uploaded.
        """
        if own := self._programs.get(route):
            return await self.client.launch(own, [argument])
        name, file = ASYNCHRONOUS if route == "async" else CHAT
        try:
            return await self.client.launch(await self._library(name, file), [argument])
        except RpcError as error:
            if error.code != "not-found":
                raise
        del self._uploaded[name]  # a user has removed it
        return await self.client.launch(await self._library(name, file), [argument])

    async def vocabulary(self, model: str) -> Vocabulary:
        """The tokens of a model, read once.

        Raises:
            Problem: the server refuses.
        """
        async with self._reading:
            if model not in self._vocabularies:
                program = await self._library(*CHAT)
                self._vocabularies[model] = await read_vocabulary(self.client, program, model)
            return self._vocabularies[model]

    async def _library(self, name: str, file: str) -> str:
        """The hash of a program of the library, which is uploaded once."""
        async with self._uploading:
            if name not in self._uploaded:
                path = shipped_folder("inferlets") / file
                data = await to_thread.run_sync(read_program, path)
                try:
                    self._uploaded[name] = await self.client.upload(data, name)
                except ClientError as error:
                    raise of_client(error) from None
            return self._uploaded[name]
