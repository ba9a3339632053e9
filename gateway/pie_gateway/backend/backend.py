"""Connections to the control process, one of each user, opened when they are first needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from pie_gateway.backend.catalog import Catalog, Snapshots
from pie_gateway.backend.generation import Generation, Seat
from pie_gateway.backend.job import EmbeddingJob, Job
from pie_gateway.backend.together import Together
from pie_gateway.backend.turns import Turns
from pie_gateway.backend.vocabulary import Vocabulary, read_vocabulary
from pie_gateway.problems import Problem, asked, of_client
from pie_py.build.library import library_source
from pie_py.build.modules import read_program
from pie_py.client import Client, ClientError, ClientKey, Instance, RpcError
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.gateway import GatewayConfig, Route
from pie_py.config.server import ServerConfig
from pie_py.config.shipped_files import shipped_folder

# The library's programs: what each is called when it is uploaded, and its file.
CHAT = ("gateway-chat", "http_answer/http_answer.wasm")
ASYNCHRONOUS = ("gateway-async", "async_function_calling/chat.py")
EMBEDDING = ("gateway-embedding", "embedding/main.py")
_OTHERS: dict[Route, tuple[str, str]] = {"async": ASYNCHRONOUS, "embeddings": EMBEDDING}
# Fields of requests that have the prompt, where it is not `messages`.
_PROMPTS: dict[Route, str] = {"completions": "prompt", "responses": "input", "embeddings": "input"}
IDLE_SECONDS = 600.0  # after which a user's connection is closed
# That neither a cluster's gateway nor a node answers: this machine is cut off, and its streams end.
CUT_SECONDS = 4.0
MOST_TOKENS = 1 << 14  # of a prompt that is given as tokens, to tell where it goes


class Reader:
    """Reads an instance's events over HTTP, until the next one takes its place."""

    instance: Instance | None = None  # once it is attached


class Backend:
    """The server, as a user's requests reach it."""

    def __init__(
        self, client: Client, config: GatewayConfig, clock: Callable[[], float], load_seconds: float
    ) -> None:
        """Takes a connected client, names, and how long requests wait for a model to be loaded."""
        self.client = client
        self.catalog = Catalog(client, config.served_model_names, clock, load_seconds)
        self.snapshots = Snapshots(client, clock)
        self.turns = Turns(client)
        self.view: Any = None  # what its live pages show, made by the first of them
        self.readers: dict[str, Reader] = {}  # by instance
        self.requests = 0  # under way
        self.used_at = clock()
        self._programs = config.programs
        self._clock = clock
        self._uploaded: dict[str, str] = {}  # hashes by name
        self._vocabularies: dict[str, Vocabulary] = {}
        self._uploading = anyio.Lock()
        self._reading = defaultdict[str, anyio.Lock](anyio.Lock)  # by model, which may load first

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
        """The name of its user."""
        return self.client.user

    def generation(
        self,
        route: Route,
        job: Job | EmbeddingJob,
        images: Sequence[bytes] = (),
        together: Together | None = None,
        **how: Any,
    ) -> Generation:
        """An instance for a job, or a place in one; `how` is as of the client's `launch`."""
        field = _PROMPTS.get(route, "messages")
        begin = partial(self._launch, route, {"prompt": _beginning(job), **how})
        launch: Callable[[str], Awaitable[Instance | Seat]] = begin
        is_pure = route != "async" and not self.is_own(route)
        alone = bool(images) or route in _OTHERS or not is_pure or how.keys() != {"tag"}
        if together is not None and not alone:
            launch = partial(together.launch, begin, (self.client, how["tag"]))
        return Generation(launch, job, images, field, is_pure=is_pure)

    def is_own(self, route: Route) -> bool:
        """True if the operator has put a program in the library's place."""
        return route in self._programs

    async def launch(self, program: str, args: list[str], **how: Any) -> Instance:
        """Launches a program of the user; or one of the library, if they have none of that name.
        `how` is as of the client's `launch`. Raises `Problem`: the server refuses, or there is
        none.
        """
        try:
            return await asked(self.client.launch(program, args, **how))
        except Problem as problem:
            source = library_source(program)
            if problem.status != 404 or source is None:
                raise
        data = await to_thread.run_sync(read_program, source)
        digest = await asked(self.client.upload(data, program))
        return await asked(self.client.launch(digest, args, **how))

    async def _launch(self, route: Route, how: Mapping[str, Any], argument: str) -> Instance:
        """Launches the program of a route, where a cluster has what its prompt begins with. Raises
        `ClientError`: the server refuses. Raises `Problem`: the library's program cannot be
        uploaded.
        """

        async def launch(program: str) -> Instance:
            return await self.client.launch(program, [argument], **how)

        if own := self._programs.get(route):
            return await launch(own)
        name, file = _OTHERS.get(route, CHAT)
        digest = await self._library(name, file)
        try:
            return await launch(digest)
        except RpcError as error:
            if error.code != "not-found":
                raise
        if self._uploaded.get(name) == digest:  # a user has removed it
            del self._uploaded[name]
        return await launch(await self._library(name, file))

    async def vocabulary(self, model: str) -> Vocabulary:
        """The tokens of a model, read once. Raises `Problem`: the server refuses."""
        async with self._reading[model]:
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
                self._uploaded[name] = await asked(self.client.upload(data, name))
            return self._uploaded[name]


def _beginning(job: Job | EmbeddingJob) -> str:
    """The common beginning of prompts: the text that the model reads, first of it its tools."""
    if isinstance(job, EmbeddingJob):
        return ""
    asked = job.messages or job.text or str((job.tokens or [])[:MOST_TOKENS])
    return f"{job.model} {job.adapter} {job.tools} {job.template} {asked}"


class Backends:
    """A backend per user. One task owns each: a client is left by the task that entered it."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float]) -> None:
        self._endpoint = config.endpoint
        self._config = config.gateway
        self._load_seconds = config.on_demand.wait_seconds
        self._clock = clock
        self._tasks: TaskGroup | None = None
        self._open: dict[ClientKey | None, Backend] = {}
        self._opening = anyio.Lock()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keeps the connections until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await anyio.sleep_forever()

    async def of(self, key: ClientKey | None) -> Backend:
        """The backend of a user's key, or of the machine's user where no keys are needed. Raises
        `Problem`: the server is not reached, or does not take the key.
        """
        async with self._opening:
            if key not in self._open or not self._open[key].client.is_alive:
                assert self._tasks is not None
                try:
                    await self._tasks.start(self._keep, key)
                except ClientError as error:
                    raise of_client(error) from None
            backend = self._open[key]
        backend.used_at = self._clock()
        return backend

    async def is_reachable(self) -> bool:
        """True if the control process listens."""
        endpoint = parse_endpoint(self._endpoint)
        return await to_thread.run_sync(answers, endpoint)

    async def _keep(self, key: ClientKey | None, *, task_status: TaskStatus[None]) -> None:
        """Connects, and stays connected until it is not used, or lost for good."""
        async with Client(self._endpoint, key, cut_seconds=CUT_SECONDS) as client:
            backend = Backend(client, self._config, self._clock, self._load_seconds)
            self._open[key] = backend
            task_status.started()
            try:
                # To be idle sets no event.
                while client.is_alive and (  # noqa: ASYNC110
                    key is None
                    or backend.requests
                    or self._clock() - backend.used_at <= IDLE_SECONDS
                ):
                    await anyio.sleep(IDLE_SECONDS / 20)
            finally:
                if self._open.get(key) is backend:  # it may have a successor
                    del self._open[key]
